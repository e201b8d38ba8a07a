// Command peer runs in a guest of tests to check what its host provides.
//
//	peer mirror CID PORT BYTES   sends bytes to an echo service, and compares
//	peer refused CID PORT        expects the connection to be refused
//	peer file FILE OUT           writes the number of each share in FILE to OUT
//	peer stream                  acknowledges each share of the host at once
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

	"mete.dev/mete/internal/guest/energyshare"
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
		return errors.New("mirror, refused, file or stream?")
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
	case args[0] == "refused" && len(n) == 2:
		c, err := dial(n[0], n[1])
		if err != nil {
			fmt.Println("peer: refused as expected:", err)
			return nil
		}
		return errors.Join(errors.New("a peer accepted the connection"), c.Close())
	case args[0] == "file" && len(args) == 3:
		return file(args[1], args[2])
	case args[0] == "stream":
		return stream()
	}
	return fmt.Errorf("unknown command %q", args)
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
		return fmt.Errorf("%d bytes came back changed", size)
	}
	fmt.Printf("peer: %d bytes in %v\n", size, time.Since(began))
	return c.Close()
}

// glance is the interval between reads of a file.
const glance = 5 * time.Millisecond

// file reads a file of shares and appends each new number to out, until it is killed.
func file(name, out string) error {
	f, err := os.OpenFile(out, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	for last := int64(-1); ; time.Sleep(glance) {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // missing for a moment
		}
		m, err := energyshare.Decode(b)
		if err != nil {
			return err // a partial file is an error
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
		c, err := dial(vsock.Host, energyshare.Port)
		if err != nil {
			continue // no listener for a moment
		}
		r := bufio.NewReader(c)
		for {
			line, err := r.ReadBytes('\n')
			if err != nil {
				break
			}
			m, err := energyshare.Decode(line)
			if err != nil {
				fmt.Println("peer:", err)
				break
			}
			if _, err := c.Write(energyshare.AppendAck(nil, energyshare.Ack{Epoch: m.Epoch, N: m.N, Energy: m.Energy()})); err != nil {
				break
			}
		}
		_ = c.Close() // the stream has ended
	}
}
