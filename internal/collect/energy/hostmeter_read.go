package energy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/sleep"
)

// readDir reads a message from the directory or its zone, else the plain counter.
func (hm *hostMeter) readDir() error {
	for _, name := range []string{energyshare.File, path.Join(energyshare.Zone, energyshare.File)} {
		b, err := readShort(hm.host, path.Join(hm.dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		return hm.decode(viaFile, b)
	}
	b, err := readShort(hm.host, path.Join(hm.dir, energyshare.ZoneEnergy))
	if err != nil {
		return err
	}
	v, err := procfmt.Int(b)
	if err != nil || v < 0 || v > maxValue {
		return refusal{fmt.Errorf("%s: %w", path.Join(hm.dir, energyshare.ZoneEnergy), errText)}
	}
	hm.takePlain(v)
	return nil
}

// decode takes a message from a channel. A message in which the host says why it has no
// share is not refused.
func (hm *hostMeter) decode(by int, b []byte) error {
	m, err := energyshare.Decode(b)
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
func readShort(h *hostfs.FS, name string) ([]byte, error) {
	f, err := h.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	if fileStat(f).Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, refusal{fmt.Errorf("%s: not a file: %w", name, fault.ErrInvalid)}
	}
	buf := make([]byte, energyshare.MaxLine+1) // a longer message is noticed
	n, err := f.Pread(buf)
	return buf[:n], hostfs.Kind(name, err)
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
		hm.setError(viaStream, hm.receive(ctx, false))
		if time.Since(began) > maxRetry {
			wait = minRetry
		}
		if sleep.For(ctx, wait) != nil {
			return
		}
	}
}

// receive connects to the host and takes its shares, or the first one only. It returns why
// the stream ended, nil after the first share.
func (hm *hostMeter) receive(ctx context.Context, once bool) error {
	conn, err := hm.dial(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var ways sync.WaitGroup
	defer ways.Wait()
	defer cancel()
	ways.Go(func() {
		<-ctx.Done()
		_ = conn.Close() // ends reading and writing
	})
	ways.Go(func() {
		defer cancel()
		hm.sendAcks(ctx, conn)
	})
	r := bufio.NewReaderSize(conn, energyshare.MaxLine)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(readTimeout)) // if it fails, so does reading
		line, err := r.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return refusal{fmt.Errorf("share: longer than %d bytes: %w", energyshare.MaxLine, fault.ErrInvalid)}
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the host closed the connection: %w", fault.ErrUnavailable)
		case err != nil:
			return err
		}
		if err := hm.decode(viaStream, line); err != nil || once {
			return err
		}
	}
}

// sendAcks writes acknowledgments to the host until ctx or the connection ends.
func (hm *hostMeter) sendAcks(ctx context.Context, conn net.Conn) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-hm.acks:
			_ = conn.SetWriteDeadline(time.Now().Add(ackLimit)) // if it fails, so does writing
			if _, err := conn.Write(energyshare.AppendAck(nil, a)); err != nil {
				return
			}
		}
	}
}
