package attack

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit/hosttest"
)

// A Call is a request that a process of another user of the machine sends.
type Call struct {
	Network, Address string // tcp or unix
	Method, Path     string
	Headers          []string // lines
	Body             string
}

const (
	callVariable   = "METE_ATTACK_CALL"
	listenVariable = "METE_ATTACK_LISTEN"
)

// Main is for the TestMain of a package that calls [CallAsOther] or [ListenAsOther]: it is their
// process.
func Main() {
	if text := os.Getenv(callVariable); text != "" {
		if err := call(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(listenVariable) != "" {
		fmt.Fprintln(os.Stderr, listen())
		os.Exit(1)
	}
}

// call sends a request and prints the status code and the body. A server that closes the
// connection has the code 0.
func call(text string) error {
	var c Call
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	conn, err := net.Dial(c.Network, c.Address)
	if err != nil {
		fmt.Println(0)
		return nil
	}
	defer func() { _ = conn.Close() }()
	// The server may have closed the connection.
	_, _ = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n%s",
		c.Method, c.Path, len(c.Body), strings.Join(append(c.Headers, ""), "\r\n"), c.Body)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		fmt.Println(0)
		return nil
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it was read
	fmt.Printf("%d\n%s", resp.StatusCode, b)
	return err
}

// CallAsOther sends a request by a process of [hosttest.OtherUID]. The status is 0 if the server
// closes the connection.
func CallAsOther(t testing.TB, c Call) (status int, body string) {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := asOther(t, callVariable+"="+string(text))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	first, body, _ := strings.Cut(string(out), "\n")
	if _, err := fmt.Sscan(first, &status); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return status, body
}

// asOther returns this test binary as a process of another user, which root alone can make.
func asOther(t testing.TB, env string) *exec.Cmd {
	t.Helper()
	hosttest.Need(t, "root")
	cmd := exec.Command("/proc/self/exe") // the directory of the binary is accessible to root only
	cmd.Env = []string{env}
	cmd.Dir, cmd.Stderr = "/", os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: hosttest.OtherUID, Gid: hosttest.OtherUID}}
	return cmd
}

// listen prints its address, and everything that its clients send, until the process is killed.
func listen() error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			_, _ = io.Copy(os.Stdout, c) // what the client sends
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
			_ = c.Close()
		}()
	}
}

// ListenAsOther listens on the loopback by a process of [hosttest.OtherUID]. received returns
// what its clients sent so far.
func ListenAsOther(t testing.TB) (address string, received func() string) {
	t.Helper()
	cmd := asOther(t, listenVariable+"=1")
	p := &Process{Cmd: cmd, done: make(chan struct{})}
	cmd.Stdout = &p.Out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it never ends
		<-p.done
	})
	p.Await(t, "\n")
	address, _, _ = strings.Cut(p.Out.String(), "\n")
	return address, func() string { return strings.TrimPrefix(p.Out.String(), address+"\n") }
}
