package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mete.dev/mete/internal/client"
	"mete.dev/mete/internal/entry"
	"mete.dev/mete/internal/token"
	"mete.dev/mete/internal/xtest/postgres"
)

// A target is a real server on this machine, reached by TLS.
type target struct {
	url      string
	cmd      *exec.Cmd
	database *exec.Cmd // a PostgreSQL of its own, or nil
	data     string    // where that is
	agents   token.Token
	reader   *client.Client
}

// openTarget starts the server that bin is, with its state in dir. database is
// that of its flag; "postgres" starts one.
func openTarget(ctx context.Context, bin, dir, database string) (t *target, err error) {
	t = &target{}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if database == "postgres" {
		// Not in dir, which only its owner enters: PostgreSQL refuses root.
		if t.data, err = os.MkdirTemp("", "mete-pg-"); err != nil {
			return t, err
		}
		if t.database, database, err = startPostgres(t.data); err != nil {
			return t, err
		}
	}
	state := filepath.Join(dir, "state")
	args := []string{"server", "--listen", "127.0.0.1:0", "--state", state}
	if database != "" {
		args = append(args, "--database", database)
	}
	cmd := exec.Command(bin, args...)
	log, err := os.Create(filepath.Join(dir, "server.log"))
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return t, err
	}
	if err := cmd.Start(); err != nil {
		return t, err
	}
	t.cmd = cmd
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "mete server: ")
	if err != nil || !ok {
		b, _ := os.ReadFile(log.Name()) // it is to explain an error
		return t, fmt.Errorf("mete server says %q, not where it is\n%s", line, b)
	}
	t.url = url
	admin := client.NewLocal(state)
	if t.agents, err = newToken(ctx, admin, entry.Token{Role: entry.Agent, Cluster: "bench", Uses: -1}); err != nil {
		return t, err
	}
	viewer, err := newToken(ctx, admin, entry.Token{Role: entry.Viewer})
	if err != nil {
		return t, err
	}
	t.reader, err = client.New(url, viewer)
	return t, err
}

func newToken(ctx context.Context, admin *client.Local, want entry.Token) (token.Token, error) {
	text, _, err := admin.CreateToken(ctx, want)
	if err != nil {
		return token.Token{}, err
	}
	return token.Parse(text)
}

// cpu is the server's CPU time so far, and its database's.
func (t *target) cpu() (server, database time.Duration) {
	server = cpuOf(t.cmd.Process.Pid)
	if t.database != nil {
		database = treeOf(t.database.Process.Pid)
	}
	return server, database
}

// treeOf is the CPU time of a process and its children, the ended ones included.
func treeOf(pid int) time.Duration {
	sum := cpuOf(pid)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// The name, in parentheses, may hold anything: proc(5).
		text := string(b)
		f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		const ppid, cutime, cstime = 1, 13, 14
		if err != nil || len(f) <= cstime {
			continue
		}
		if f[ppid] == strconv.Itoa(pid) {
			sum += cpuOf(child)
		}
		if child == pid {
			for _, i := range []int{cutime, cstime} {
				ticks, _ := strconv.ParseInt(f[i], 10, 64) // a number by proc(5)
				sum += time.Duration(ticks) * (time.Second / 100)
			}
		}
	}
	return sum
}

// close ends the server and its database.
func (t *target) close() error {
	var errs []error
	for _, c := range []struct {
		cmd *exec.Cmd
		by  syscall.Signal
	}{{t.cmd, syscall.SIGTERM}, {t.database, syscall.SIGINT}} {
		if c.cmd == nil {
			continue
		}
		if err := c.cmd.Process.Signal(c.by); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
		errs = append(errs, c.cmd.Wait())
	}
	if t.data != "" {
		errs = append(errs, os.RemoveAll(t.data))
	}
	return errors.Join(errs...)
}

// startPostgres starts a PostgreSQL as it is delivered, on a unix socket in dir.
func startPostgres(dir string) (_ *exec.Cmd, dsn string, err error) {
	bin, err := postgres.Programs()
	if err != nil {
		return nil, "", err
	}
	attr := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			return nil, "", err
		}
		uid, _ := strconv.Atoi(u.Uid) // numbers on Linux
		gid, _ := strconv.Atoi(u.Gid)
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, uid, gid); err != nil {
			return nil, "", err
		}
	}
	data := filepath.Join(dir, "data")
	initdb := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
	initdb.SysProcAttr, initdb.Dir = attr, dir
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, "", fmt.Errorf("initdb: %w\n%s", err, out)
	}
	cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-k", dir, "-h", "", "-c", "logging_collector=on")
	cmd.SysProcAttr, cmd.Dir = attr, dir
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	dsn = "postgres:///postgres?host=" + dir + "&user=postgres"
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return cmd, "", err
	}
	for range 200 {
		if err = db.Ping(); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return cmd, dsn, errors.Join(err, db.Close())
}
