package ledgertest

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/pgbin"
)

// A server is a PostgreSQL of the test program.
type server struct {
	dir   string // of its data and socket
	cmd   *exec.Cmd
	ended chan error
	out   bytes.Buffer
	made  atomic.Int64 // number of schemas
}

var (
	once    sync.Once
	running *server
	starts  error
	mains   bool
)

// Main runs the tests of a package that uses PostgreSQL, for its TestMain, and then stops
// the server.
func Main(m *testing.M) {
	mains = true
	code := m.Run()
	if running != nil {
		if err := running.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "PostgreSQL:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// PostgreSQL returns the dsn of an empty schema in a PostgreSQL server, which the first
// call starts. The package's TestMain must be Main. Outside the stage "postgres" it skips
// the test, since the default gate runs without a database server.
func PostgreSQL(t testing.TB) string {
	t.Helper()
	testkit.Stage(t, "postgres", "needs PostgreSQL")
	hosttest.Need(t, "postgres")
	if !mains {
		t.Fatal("ledgertest: TestMain does not call Main, which stops PostgreSQL")
	}
	once.Do(func() { running, starts = start() })
	if starts != nil {
		t.Fatalf("PostgreSQL: %v", starts)
	}
	// Creating a schema is much faster than creating a database.
	name := fmt.Sprintf("t%d", running.made.Add(1))
	db, err := sql.Open("pgx", running.dsn())
	if err == nil {
		_, err = db.ExecContext(t.Context(), "CREATE SCHEMA "+name)
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		t.Fatalf("PostgreSQL: %v", err)
	}
	return running.dsn() + "&search_path=" + name
}

func (s *server) dsn() string {
	return "postgres:///postgres?host=" + s.dir + "&user=postgres"
}

// start creates and starts a server that listens only on a unix socket. Its data is
// temporary, so it does not sync.
func start() (_ *server, err error) {
	bin, err := pgbin.Programs()
	if err != nil {
		return nil, err
	}
	s := &server{ended: make(chan error, 1)}
	// Not the test's own temporary directory: the path of a socket must be short.
	if s.dir, err = os.MkdirTemp("", "mete-pg-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(s.dir))
		}
	}()
	attr, err := s.processAttr()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(s.dir, "data")
	initdb := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	initdb.SysProcAttr, initdb.Dir = &syscall.SysProcAttr{Credential: attr.Credential}, s.dir
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	s.cmd = exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-k", s.dir, "-h", "",
		"-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off", "-c", "max_connections=200")
	s.cmd.SysProcAttr, s.cmd.Dir = attr, s.dir
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread that started the server ends, so the
		// goroutine keeps it.
		runtime.LockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			s.ended <- s.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return s, s.ready()
}

// processAttr returns the attributes of the server, which dies with the test program, and gives the directory to the user
// that runs it: PostgreSQL refuses root.
func (s *server) processAttr() (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Geteuid() != 0 {
		return attr, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return nil, err
	}
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attr, os.Chown(s.dir, uid, gid)
}

// readyTimeout is for how long a server that runs may refuse connections: on a busy machine it recovers slowly.
const readyTimeout = 2 * time.Minute

// ready waits until the server answers, has exited, or has refused connections for readyTimeout.
func (s *server) ready() error {
	db, err := sql.Open("pgx", s.dsn())
	if err != nil {
		return err
	}
	try := time.NewTicker(20 * time.Millisecond)
	defer try.Stop()
	late := time.NewTimer(readyTimeout)
	defer late.Stop()
	for err = db.Ping(); err != nil; err = db.Ping() {
		select {
		case <-late.C:
			return errors.Join(fmt.Errorf("the server refuses connections for %v: %w\n%s", readyTimeout, err, s.out.String()), s.cmd.Process.Kill(), db.Close())
		case <-try.C:
		case ended := <-s.ended:
			return errors.Join(fmt.Errorf("the server exited: %w\n%s", ended, s.out.String()), db.Close())
		}
	}
	return db.Close()
}

// stop stops the server and removes its data.
func (s *server) stop() error {
	err := s.cmd.Process.Signal(syscall.SIGINT) // fast shutdown
	if err == nil {
		err = <-s.ended
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}
