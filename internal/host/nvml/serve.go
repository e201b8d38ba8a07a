package nvml

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"mete.dev/mete/internal/model/fault"
)

// Serve writes to out which accelerators there are and, for each line on in, their
// readings, until in ends. Each answer is one line with tabs between its fields:
//
//	none                  no library: the only line
//	failed<tab>error<tab>hint
//	meters<tab>energy GPU-...<tab>power GPU-...<tab>!error of an omitted one
//	<value>...            mJ or mW of each meter, or ! and its error
func Serve(in io.Reader, out io.Writer) error {
	l, err := Open()
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return writeFields(out, "none")
	case err != nil:
		return writeFields(out, "failed", err.Error(), fault.Hint(err))
	}
	defer func() { _ = l.Close() }() // the process exits
	devices, refused, err := l.Devices()
	if err != nil {
		return writeFields(out, "failed", err.Error(), fault.Hint(err))
	}
	fields := []string{"meters"}
	for _, d := range devices {
		kind := "power"
		if d.Energy {
			kind = "energy"
		}
		fields = append(fields, kind+" "+d.UUID)
	}
	for _, err := range refused {
		fields = append(fields, "!"+err.Error())
	}
	if err := writeFields(out, fields...); err != nil {
		return err
	}
	lines := bufio.NewReaderSize(in, 16)
	for {
		if _, err := lines.ReadSlice('\n'); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		fields = fields[:0]
		for _, d := range devices {
			v, err := d.Read()
			text := fmt.Sprint(v)
			if err != nil {
				text = "!" + err.Error()
			}
			fields = append(fields, text)
		}
		if err := writeFields(out, fields...); err != nil {
			return err
		}
	}
}

// writeFields writes one line, with blanks for control characters in fields.
func writeFields(out io.Writer, fields ...string) error {
	for i, f := range fields {
		fields[i] = strings.Map(func(r rune) rune {
			if r < ' ' {
				return ' '
			}
			return r
		}, f)
	}
	_, err := io.WriteString(out, strings.Join(fields, "\t")+"\n")
	return err
}
