package run

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"mete.dev/mete/internal/job/report"
)

// output is the destination of a report.
type output struct {
	cfg            *config
	stdout, stderr io.Writer
	// direct gets the JSON if its file is standard output or standard error; else nil.
	direct io.Writer
	// temp becomes the JSON file; nil if that is not a regular file.
	temp *os.File
	path string // of the JSON file, without a symbolic link
}

// openOutput checks before the job starts that its report can be written.
func openOutput(c *config, stdout, stderr io.Writer) (*output, error) {
	o := &output{cfg: c, stdout: stdout, stderr: stderr, path: c.json}
	switch c.json {
	case "":
		return o, nil
	case "-":
		o.direct = stdout
		return o, nil
	}
	st, err := os.Stat(c.json)
	for _, w := range []io.Writer{stdout, stderr} {
		if err == nil && isFile(w, st) {
			// Such as /dev/stdout: a renamed file would not be the one that the caller has open.
			o.direct = w
			return o, nil
		}
	}
	switch {
	case err == nil && st.IsDir():
		return nil, fmt.Errorf("--json %s: is a directory", c.json)
	case err == nil && !st.Mode().IsRegular():
		return o, nil // a pipe or a device is opened when the report is written
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("--json: %w", err)
	}
	if link, err := os.Lstat(c.json); err == nil && link.Mode()&fs.ModeSymlink != 0 {
		// Renaming would replace the link.
		if o.path, err = filepath.EvalSymlinks(c.json); err != nil {
			return o, nil // a link to nothing is followed when the report is written
		}
	}
	o.temp, err = os.CreateTemp(filepath.Dir(o.path), ".mete-*")
	if err != nil {
		return nil, fmt.Errorf("--json: %w", err)
	}
	return o, nil
}

// isFile reports whether w is an open file with this information.
func isFile(w io.Writer, st fs.FileInfo) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	own, err := f.Stat()
	return err == nil && os.SameFile(own, st)
}

// write prints the report and writes the JSON file atomically.
func (o *output) write(r *report.Report) error {
	var err error
	if !o.cfg.quiet {
		_, err = o.stderr.Write(form(o.cfg.output, r))
	}
	switch {
	case o.direct != nil:
		_, werr := o.direct.Write(r.JSON())
		err = errors.Join(err, werr)
	case o.temp != nil:
		err = errors.Join(err, o.rename(r))
	case o.cfg.json != "":
		err = errors.Join(err, os.WriteFile(o.cfg.json, r.JSON(), 0o666))
	}
	return err
}

func (o *output) rename(r *report.Report) error {
	// os.CreateTemp restricts a file to its owner; the report gets the mode of an ordinary result,
	// or of the file that it replaces.
	mode := 0o666 &^ umask()
	if st, err := os.Stat(o.path); err == nil {
		mode = st.Mode().Perm()
	}
	_, err := o.temp.Write(r.JSON())
	err = errors.Join(err, o.temp.Chmod(mode), o.temp.Close())
	if err == nil {
		err = os.Rename(o.temp.Name(), o.path)
	}
	if err == nil {
		o.temp = nil
	}
	return err
}

// discard removes a report that was not written.
func (o *output) discard() {
	if o.temp != nil {
		// Both fail after a partial rename, which has reported its error.
		_ = o.temp.Close()
		_ = os.Remove(o.temp.Name())
	}
}

// form formats the report for -o.
func form(output string, r *report.Report) []byte {
	switch output {
	case "json":
		return r.JSON()
	case "csv":
		return report.CSV(r)
	}
	return r.Text()
}
