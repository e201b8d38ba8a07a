package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// unprivileged is the user of images that need no rights: it has no name, as there is no
// /etc/passwd.
const unprivileged = 65532

// images writes an image of the agent and one of the server, which contain their programs and
// nothing else.
func (b *built) images(dir string) error {
	for _, i := range []struct {
		name     string
		programs []string
		entry    []string
		args     []string
		user     int
		port     string
	}{
		{"mete-agent", []string{"mete-agent", "mete-nvml"}, []string{"/bin/mete-agent"}, []string{"-state", "/state"}, 0, ""},
		{"mete-server", []string{"mete-server", "mete"}, []string{"/bin/mete-server", "server"}, []string{"--listen", ":9797", "--state", "/state"}, unprivileged, "9797/tcp"},
	} {
		var files []file
		for _, p := range i.programs {
			files = append(files, file{path: "/bin/" + p, mode: 0o755, body: b.files[p]})
		}
		layer, err := b.layer(files, i.user)
		if err != nil {
			return err
		}
		created := v1.Time{Time: b.time}
		c := v1.Config{User: fmt.Sprint(i.user), Entrypoint: i.entry, Cmd: i.args, WorkingDir: "/state", Volumes: map[string]struct{}{"/state": {}},
			Env:    []string{"PATH=/bin", "METE_STATE=/state"},
			Labels: map[string]string{"org.opencontainers.image.title": i.name, "org.opencontainers.image.version": b.version, "org.opencontainers.image.licenses": license, "org.opencontainers.image.url": homepage}}
		if i.port != "" {
			c.ExposedPorts = map[string]struct{}{i.port: {}}
		}
		img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{Architecture: b.arch, OS: "linux", Created: created, Config: c, RootFS: v1.RootFS{Type: "layers"}})
		if err != nil {
			return err
		}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{Created: created, CreatedBy: "go run ./tools/release"}}); err != nil {
			return err
		}
		tag, err := name.NewTag(i.name + ":" + imageTag(b.version))
		if err != nil {
			return err
		}
		if err := tarball.WriteToFile(filepath.Join(dir, fmt.Sprintf("%s-%s_linux_%s.image.tar", i.name, b.version, b.arch)), tag, img); err != nil {
			return err
		}
	}
	return nil
}

// imageTag returns a version as a tag, which has no plus sign.
func imageTag(v string) string { return string(bytes.ReplaceAll([]byte(v), []byte("+"), []byte("-"))) }

// layer makes the only layer of an image: the programs, and the directories that they write to.
func (b *built) layer(files []file, user int) (v1.Layer, error) {
	var buf bytes.Buffer
	t := tar.NewWriter(&buf)
	for _, d := range []struct {
		name  string
		mode  int64
		owner int
	}{{"bin/", 0o755, 0}, {"state/", 0o700, user}, {"tmp/", 0o1777, 0}} {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d.name, Mode: d.mode, Uid: d.owner, Gid: d.owner, ModTime: b.time, Format: tar.FormatGNU}); err != nil {
			return nil, err
		}
	}
	for _, f := range sorted(files) {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.path[1:], Mode: f.mode, Size: int64(len(f.body)), ModTime: b.time, Format: tar.FormatGNU}); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.body); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
}
