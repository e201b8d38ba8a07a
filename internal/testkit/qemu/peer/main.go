// Command peer is what tests run in a guest to see for themselves what its host
// gives it.
//
//	peer mirror CID PORT BYTES   sends bytes to who sends them back, and compares
//	peer nobody CID PORT         wants to be refused
//	peer file FILE OUT           notes in OUT the number of each share in FILE
//	peer stream                  answers each share of the host at once
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"mete.dev/mete/internal/guest/share"
	"mete.dev/mete/internal/host/vsock"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Println("peer:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("mirror, nobody, file or stream?")
	}
	var n []int
	for _, a := range args[1:] {
		if i, err := strconv.Atoi(a); err == nil {
			n = append(n, i)
		}
	}
	switch {
	case args[0] == "mirror" && len(n) == 3:
		return mirror(n[0], n[1], n[2])
	case args[0] == "nobody" && len(n) == 2:
		c, err := dial(n[0], n[1])
		if err != nil {
			fmt.Println("peer: as wanted:", err)
			return nil
		}
		return errors.Join(errors.New("somebody is there"), c.Close())
	case args[0] == "file" && len(args) == 3:
		return file(args[1], args[2])
	case args[0] == "stream":
		return stream()
	}
	return fmt.Errorf("%q is nothing to do", args)
}

func dial(cid, port int) (net.Conn, error) {
	return vsock.Dial(context.Background(), vsock.Addr{CID: uint32(cid), Port: uint32(port)}, 10*time.Second)
}

func mirror(cid, port, size int) error {
	c, err := dial(cid, port)
	if err != nil {
		return err
	}
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i * 7 >> 3)
	}
	began := time.Now()
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(want)
		sent <- err
	}()
	got := make([]byte, size)
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if err := <-sent; err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%d bytes came back otherwise", size)
	}
	fmt.Printf("peer: %d bytes in %v\n", size, time.Since(began))
	return c.Close()
}

// glance is how often a file is looked at.
const glance = 5 * time.Millisecond

// file looks at a file of shares and notes each new one's number, until it is
// killed.
func file(name, out string) error {
	f, err := os.OpenFile(out, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	for last := int64(-1); ; time.Sleep(glance) {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // not there for now
		}
		m, err := share.Decode(b)
		if err != nil {
			return err // half a file would be one
		}
		if m.N == last {
			continue
		}
		last = m.N
		if _, err := fmt.Fprintln(f, m.N); err != nil {
			return err
		}
	}
}

// stream answers each share with its own energy, until it is killed.
func stream() error {
	for ; ; time.Sleep(200 * time.Millisecond) {
		c, err := dial(vsock.Host, share.Port)
		if err != nil {
			continue // nobody there for now
		}
		r := bufio.NewReader(c)
		for {
			line, err := r.ReadBytes('\n')
			if err != nil {
				break
			}
			m, err := share.Decode(line)
			if err != nil {
				fmt.Println("peer:", err)
				break
			}
			if _, err := c.Write(share.AppendAck(nil, share.Ack{Epoch: m.Epoch, N: m.N, Energy: m.Energy()})); err != nil {
				break
			}
		}
		_ = c.Close() // it is done with
	}
}
