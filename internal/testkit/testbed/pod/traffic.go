package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"mete.dev/mete/internal/host/procfmt"
)

// giveTraffic adds the counters of the interfaces, without lo, and gives the report.
func (r report) giveTraffic() error {
	b, err := os.ReadFile("/proc/self/net/dev")
	if err != nil {
		return err
	}
	err = procfmt.NetDev(b, func(name string, rxBytes, _, txBytes, _ int64) {
		if name != "lo" {
			r.Rx += rxBytes
			r.Tx += txBytes
		}
	})
	return errors.Join(err, r.give())
}

// parts is how many parts the bytes of a client, or of a file, are divided into.
const parts = 10

func traffic(args []string) error {
	f := flag.NewFlagSet("traffic", flag.ExitOnError)
	to := f.String("to", "", "the server's `address`")
	send := f.Int64("send", 0, "bytes to send")
	receive := f.Int64("receive", 0, "bytes to receive")
	wait := f.Duration("wait", 0, "how long to be quiet before")
	during := f.Duration("for", 0, "how long to send and receive")
	// With ExitOnError it returns no error.
	_ = f.Parse(args)
	time.Sleep(*wait)
	var c net.Conn
	var err error
	for range 100 { // routes to a pod may need a moment
		if c, err = net.Dial("tcp", *to); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	r := report{}
	for range parts {
		time.Sleep(*during / parts)
		if _, err := fmt.Fprintln(c, *send/parts, *receive/parts); err != nil {
			return err
		}
		if _, err := c.Write(make([]byte, *send/parts)); err != nil {
			return err
		}
		n, err := io.CopyN(io.Discard, c, *receive/parts)
		if err != nil {
			return err
		}
		r.Sent += *send / parts
		r.Received += n
	}
	return errors.Join(c.Close(), r.giveTraffic())
}

func serve(args []string) error {
	f := flag.NewFlagSet("serve", flag.ExitOnError)
	at := f.String("at", ":7000", "the `address` to listen on")
	clients := f.Int("clients", 1, "how many clients to serve")
	// With ExitOnError it returns no error.
	_ = f.Parse(args)
	l, err := net.Listen("tcp", *at)
	if err != nil {
		return err
	}
	served := make(chan report)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				r, err := answer(c)
				if err := errors.Join(err, c.Close()); err != nil {
					fmt.Fprintln(os.Stderr, "pod:", err)
				}
				served <- r
			}()
		}
	}()
	sum := report{}
	for range *clients {
		r := <-served
		sum.Sent += r.Sent
		sum.Received += r.Received
	}
	return sum.giveTraffic()
}

// answer does what a client wants until the client ends.
func answer(c net.Conn) (r report, err error) {
	in := bufio.NewReader(c)
	for {
		var receive, send int64
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) && line == "" {
			return r, nil
		} else if err != nil {
			return r, err
		}
		if _, err := fmt.Sscan(line, &receive, &send); err != nil {
			return r, err
		}
		n, err := io.CopyN(io.Discard, in, receive)
		r.Received += n
		if err != nil {
			return r, err
		}
		k, err := c.Write(make([]byte, send))
		r.Sent += int64(k)
		if err != nil {
			return r, err
		}
	}
}
