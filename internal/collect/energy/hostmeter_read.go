package energy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/guest/share"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/sleep"
)

// readDir reads a message from the directory or its zone, else the plain counter.
func (hm *hostMeter) readDir() error {
	for _, name := range []string{share.File, path.Join(share.Zone, share.File)} {
		b, err := readShort(hm.host.Path(path.Join(hm.dir, name)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		return hm.decode(viaFile, b)
	}
	b, err := readShort(hm.host.Path(path.Join(hm.dir, share.ZoneEnergy)))
	if err != nil {
		return err
	}
	v, err := procfmt.Int(b)
	if err != nil || v < 0 || v > maxValue {
		return refusal{fmt.Errorf("%s: %w", path.Join(hm.dir, share.ZoneEnergy), errText)}
	}
	hm.takePlain(v)
	return nil
}

// decode takes a message from a channel. A message in which the host says why it has no
// share is not refused.
func (hm *hostMeter) decode(by int, b []byte) error {
	m, err := share.Decode(b)
	if errors.Is(err, fault.ErrUnavailable) {
		return err
	}
	if err == nil {
		err = hm.takeShare(by, &m)
	}
	if err != nil {
		return refusal{err}
	}
	return nil
}

// readShort reads a file with at most one message. It does not block on other kinds of
// files.
func readShort(name string) (_ []byte, err error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, refusal{fmt.Errorf("%s: not a file: %w", name, fault.ErrInvalid)}
	}
	return io.ReadAll(io.LimitReader(f, share.MaxLine+1))
}

const (
	// dialLimit is how long connecting may take.
	dialLimit = 2 * time.Second
	// readTimeout is how long the host may be silent: twice its longest tick.
	readTimeout = 2 * time.Minute
	// ackLimit is how long writing to the host may block.
	ackLimit = 5 * time.Second
	// minRetry and maxRetry bound the time between two attempts to connect.
	minRetry, maxRetry = 250 * time.Millisecond, 10 * time.Second
)

// keepConnected keeps a connection to the host until ctx ends, with retries.
func (hm *hostMeter) keepConnected(ctx context.Context) {
	for wait := minRetry; ; wait = min(2*wait, maxRetry) {
		began := time.Now()
		hm.setError(viaStream, hm.receive(ctx, 0))
		if time.Since(began) > maxRetry {
			wait = minRetry
		}
		if sleep.For(ctx, wait) != nil {
			return
		}
	}
}

// receive connects to the host and takes its shares: most of them, or all if most is 0. It
// returns why the stream ended.
func (hm *hostMeter) receive(ctx context.Context, most int) error {
	conn, err := hm.dial(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends Read
	defer stop()
	answering := make(chan struct{})
	go func() {
		defer close(answering)
		hm.sendAcks(ctx, conn)
		cancel()
	}()
	defer func() {
		cancel()
		_ = conn.Close()
		<-answering
	}()
	r := bufio.NewReaderSize(conn, share.MaxLine)
	for n := 1; ; n++ {
		if err := conn.SetReadDeadline(time.Now().Add(readTimeout)); err != nil {
			return err
		}
		line, err := r.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return refusal{fmt.Errorf("share: longer than %d bytes: %w", share.MaxLine, fault.ErrInvalid)}
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the host closed the connection: %w", fault.ErrUnavailable)
		case err != nil:
			return err
		}
		if err := hm.decode(viaStream, line); err != nil || n == most {
			return err
		}
	}
}

// sendAcks writes acknowledgments to the host until ctx or the connection ends.
func (hm *hostMeter) sendAcks(ctx context.Context, conn net.Conn) {
	var buf []byte
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-hm.acks:
			buf = share.AppendAck(buf[:0], a)
		}
		if conn.SetWriteDeadline(time.Now().Add(ackLimit)) != nil {
			return
		}
		if _, err := conn.Write(buf); err != nil {
			return
		}
	}
}
