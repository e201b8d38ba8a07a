package main

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"
)

// writeTar writes files, and the directories above them, all of root and with one time. prefix is
// put before each path.
func writeTar(w io.Writer, prefix string, at time.Time, files []file) error {
	t := tar.NewWriter(w)
	done := map[string]bool{}
	var dirs func(dir string) error
	dirs = func(dir string) error {
		if dir == "/" || dir == "." || done[dir] {
			return nil
		}
		done[dir] = true
		if err := dirs(path.Dir(dir)); err != nil {
			return err
		}
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: prefix + dir + "/", Mode: 0o755, ModTime: at, Uname: "root", Gname: "root", Format: tar.FormatGNU})
	}
	for _, f := range sorted(files) {
		if err := dirs(path.Dir(f.path)); err != nil {
			return err
		}
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: prefix + f.path, Mode: f.mode, Size: int64(len(f.body)), ModTime: at, Uname: "root", Gname: "root", Format: tar.FormatGNU}); err != nil {
			return err
		}
		if _, err := t.Write(f.body); err != nil {
			return err
		}
	}
	return t.Close()
}

// sorted returns files in the order of their paths.
func sorted(files []file) []file {
	return slices.SortedFunc(slices.Values(files), func(a, b file) int {
		if a.path < b.path {
			return -1
		}
		return 1
	})
}

// writeTarGz is writeTar with compression.
func writeTarGz(w io.Writer, prefix string, at time.Time, files []file) error {
	z := gzip.NewWriter(w)
	if err := writeTar(z, prefix, at, files); err != nil {
		return err
	}
	return z.Close()
}

// create writes a file of the release.
func create(dir, name string, write func(w io.Writer) error) error {
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// tarball writes all programs, their units and dashboards as one archive.
func (b *built) tarball(dir string) error {
	var files []file
	for _, p := range programs {
		files = append(files, file{path: p, mode: 0o755, body: b.files[p]})
	}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		text, err := b.text(name)
		if err != nil {
			return err
		}
		files = append(files, file{path: name, mode: 0o644, body: text})
	}
	for _, dir := range []string{"deploy/systemd", "deploy/kubernetes", "deploy/grafana"} {
		found, err := b.tree(dir, ".")
		if err != nil {
			return err
		}
		files = append(files, found...)
	}
	for i, f := range files {
		if f.path == "deploy/kubernetes/mete.yaml" {
			files[i].body = imageTags.ReplaceAll(f.body, []byte("${1}"+imageTag(b.version)+`"`))
		}
	}
	top := "mete-" + b.version
	return create(dir, top+"_linux_"+b.arch+".tar.gz", func(w io.Writer) error { return writeTarGz(w, top+"/", b.time, files) })
}

// tree returns the files below a directory of the source, with their paths from base.
func (b *built) tree(dir, base string) (files []file, err error) {
	err = filepath.WalkDir(filepath.Join(b.root, dir), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		f := file{mode: 0o644}
		if info.Mode()&0o111 != 0 {
			f.mode = 0o755
		}
		if f.path, err = filepath.Rel(filepath.Join(b.root, base), path); err != nil {
			return err
		}
		f.body, err = os.ReadFile(path)
		files = append(files, f)
		return err
	})
	return files, err
}
