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

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/testkit/pgbin"
)

// A target is a real server on this machine, reached by TLS.
type target struct {
	url      string
	cmd      *exec.Cmd
	database *database
	agents   token.Token
	reader   *client.Client
	ended    chan struct{} // the server has ended
	why      error         // of its end
}

// openTarget starts the server bin, with its state in dir and its ledger in d.
func openTarget(ctx context.Context, bin, dir string, d *database, flags ...string) (t *target, err error) {
	t = &target{database: d}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	state := filepath.Join(dir, "state")
	args := append([]string{"server", "--listen", "127.0.0.1:0", "--state", state, "--database", d.dsn}, flags...)
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
	t.cmd, t.ended = cmd, make(chan struct{})
	go func() {
		t.why = cmd.Wait()
		close(t.ended)
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "mete server: ")
	if err != nil || !ok {
		b, _ := os.ReadFile(log.Name()) // for the error text
		return t, fmt.Errorf("mete server prints %q instead of its address\n%s", line, b)
	}
	t.url = url
	admin := client.NewLocal(state)
	if t.agents, err = newToken(ctx, admin, v1.TokenRequest{Role: registry.Agent, Cluster: "bench", Uses: -1}); err != nil {
		return t, err
	}
	viewer, err := newToken(ctx, admin, v1.TokenRequest{Role: registry.Viewer})
	if err != nil {
		return t, err
	}
	t.reader, err = client.New(url, viewer)
	return t, err
}

func newToken(ctx context.Context, admin *client.Local, want v1.TokenRequest) (token.Token, error) {
	made, err := admin.CreateToken(ctx, want)
	if err != nil {
		return token.Token{}, err
	}
	return token.Parse(made.Text)
}

// cpu returns the CPU time of the server and of its database so far.
func (t *target) cpu() (server, database time.Duration) {
	server = cpuOf(t.cmd.Process.Pid)
	if t.database.cmd != nil {
		database = treeCPU(t.database.cmd.Process.Pid)
	}
	return server, database
}

// treeCPU returns the CPU time of a process and its children, ended ones included.
func treeCPU(pid int) time.Duration {
	sum := cpuOf(pid)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// The name, in parentheses, may contain anything: proc(5).
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
				ticks, _ := strconv.ParseInt(f[i], 10, 64) // always a number: proc(5)
				sum += time.Duration(ticks) * (time.Second / 100)
			}
		}
	}
	return sum
}

// close ends the server.
func (t *target) close() error {
	if t.cmd == nil {
		return nil
	}
	if err := t.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-t.ended
	return t.why
}

// whileRunning returns a context that ends with the server.
func (t *target) whileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-t.ended:
			cancel(fmt.Errorf("the server ended: %w", t.why))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// end ends a program, if it was started.
func end(cmd *exec.Cmd, by syscall.Signal) error {
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Signal(by); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return cmd.Wait()
}

// A database is where a server keeps its ledger.
type database struct {
	dsn string
	cmd *exec.Cmd // of a PostgreSQL started for it
	dir string    // its directory
}

// openDatabase opens the database name: "sqlite" is a file in dir, "postgres" is started,
// and anything else is a URL.
func openDatabase(dir, name string) (d *database, err error) {
	switch name {
	case "sqlite":
		return &database{dsn: filepath.Join(dir, "ledger.db")}, nil
	case "postgres":
	default:
		return &database{dsn: name}, nil
	}
	d = &database{}
	// Not in dir, which is closed to other users: PostgreSQL refuses to run as root.
	if d.dir, err = os.MkdirTemp("", "mete-pg-"); err != nil {
		return nil, err
	}
	if d.cmd, d.dsn, err = startPostgres(d.dir); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// close ends the database, and removes it if it was created here.
func (d *database) close() error {
	if d.dir == "" {
		return nil
	}
	return errors.Join(end(d.cmd, syscall.SIGINT), os.RemoveAll(d.dir))
}

// startPostgres starts a PostgreSQL with default settings on a unix socket in dir.
func startPostgres(dir string) (_ *exec.Cmd, dsn string, err error) {
	bin, err := pgbin.Programs()
	if err != nil {
		return nil, "", err
	}
	attr := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			return nil, "", err
		}
		uid, _ := strconv.Atoi(u.Uid) // numeric on Linux
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
