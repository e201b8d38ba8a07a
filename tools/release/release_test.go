package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// fake is a build whose programs are texts.
func fake(t *testing.T, version string) *built {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	b := &built{source: &source{root, time.Unix(1700000000, 0).UTC()}, arch: "amd64", version: version, files: map[string][]byte{}, infos: map[string]*buildinfo.BuildInfo{}}
	for _, p := range programs {
		b.files[p] = []byte("program " + p)
		b.infos[p] = &debug.BuildInfo{GoVersion: "go1.26.1", Main: debug.Module{Path: "mete.dev/mete", Version: "v" + version},
			Deps: []*debug.Module{{Path: "example.org/a", Version: "v1.0.0", Sum: "h1:x"}, {Path: "example.org/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.org/c", Version: "v2.0.0"}}}}
	}
	return b
}

// write writes all formats of a build, and returns the files.
func write(t *testing.T, b *built) map[string][]byte {
	t.Helper()
	dir := t.TempDir()
	c := &config{out: dir, formats: formats}
	if err := c.write(b); err != nil {
		t.Fatal(err)
	}
	if err := c.sum(io.Discard); err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		if all[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// Equal programs give equal files, whenever they are packed.
func TestSameBytes(t *testing.T) {
	t.Parallel()
	first, second := write(t, fake(t, "1.2.3")), write(t, fake(t, "1.2.3"))
	if len(first) != 1+3+3+2+1+4+1 {
		t.Errorf("%d files", len(first))
	}
	for name, body := range first {
		if !bytes.Equal(body, second[name]) {
			t.Errorf("%s differs", name)
		}
		if name != "SHA256SUMS" && !strings.Contains(string(first["SHA256SUMS"]), "  "+name+"\n") {
			t.Errorf("%s has no sum", name)
		}
	}
}

// The members of a Debian package are those of the format: in their order, with even offsets.
func TestDeb(t *testing.T) {
	t.Parallel()
	all := write(t, fake(t, "1.2.3-rc.1"))
	deb := all["mete-server_1.2.3~rc.1_amd64.deb"]
	members, err := readAr(deb)
	if err != nil {
		t.Fatal(err)
	}
	if names := fmt.Sprint(members.names); names != "[debian-binary control.tar.gz data.tar.gz]" || string(members.bodies[0]) != "2.0\n" {
		t.Fatalf("members %s, %q", names, members.bodies[0])
	}
	control, data := untar(t, members.bodies[1]), untar(t, members.bodies[2])
	for _, want := range []string{"Package: mete-server\n", "Version: 1.2.3~rc.1\n", "Architecture: amd64\n", "Depends: mete (= 1.2.3~rc.1), mete-agent (= 1.2.3~rc.1)\n"} {
		if !strings.Contains(string(control["./control"]), want) {
			t.Errorf("control lacks %q:\n%s", want, control["./control"])
		}
	}
	if string(control["./conffiles"]) != "/etc/mete/server.env\n" {
		t.Errorf("conffiles: %q", control["./conffiles"])
	}
	unit := string(data["./usr/lib/systemd/system/mete-server.service"])
	if !strings.Contains(unit, "ExecStart=/usr/bin/mete-server ") || strings.Contains(unit, "/usr/local") {
		t.Errorf("the unit names another program:\n%s", unit)
	}
	if string(data["./usr/bin/mete-server"]) != "program mete-server" {
		t.Errorf("program: %q", data["./usr/bin/mete-server"])
	}
	if !strings.Contains(string(control["./postrm"]), "rm -rf /var/lib/private/mete-server /var/lib/mete-server /var/cache/private/mete-server /var/cache/mete-server\n") {
		t.Errorf("purging leaves the state:\n%s", control["./postrm"])
	}
}

// dpkg accepts the packages, and the sums in them are right.
func TestDebAccepted(t *testing.T) {
	t.Parallel()
	hosttest.Need(t, "dpkg")
	dir := t.TempDir()
	if err := fake(t, "1.2.3").debs(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mete", "mete-agent", "mete-server"} {
		tree := filepath.Join(dir, name)
		if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "-R", filepath.Join(dir, name+"_1.2.3_amd64.deb"), tree).CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("dpkg-deb: %v\n%s", err, out)
		}
		check := exec.CommandContext(t.Context(), "md5sum", "-c", "--quiet", "DEBIAN/md5sums")
		check.Dir = tree
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("md5sum: %v\n%s", err, out)
		}
		for _, script := range []string{"postinst", "prerm", "postrm"} {
			if out, err := exec.CommandContext(t.Context(), "sh", "-n", filepath.Join(tree, "DEBIAN", script)).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", script, err, out)
			}
		}
	}
}

// Versions of packages are ordered as those of the programs: a candidate before the version itself.
func TestVersionOrder(t *testing.T) {
	t.Parallel()
	hosttest.Need(t, "dpkg")
	list := []string{"0.0.0-20261126065856-8c3622c48cc8", "0.0.0-20261127065856-0c3622c48cc8", "0.1.0-rc.1", "0.1.0", "0.1.1-0.20261128065856-1c3622c48cc8", "0.1.1", "0.10.0", "1.0.0"}
	for i := range list[1:] {
		a, b := debVersion(list[i]), debVersion(list[i+1])
		if err := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", a, "lt", b).Run(); err != nil {
			t.Errorf("%s is not before %s: %v", a, b, err)
		}
	}
}

// An image has one layer with the programs, and that of the server runs without rights.
func TestImage(t *testing.T) {
	t.Parallel()
	all := write(t, fake(t, "1.2.3+dirty"))
	image := untarPlain(t, all["mete-server-1.2.3+dirty_linux_amd64.image.tar"])
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(image["manifest.json"], &manifest); err != nil || len(manifest) != 1 || len(manifest[0].Layers) != 1 {
		t.Fatalf("%s: %v", image["manifest.json"], err)
	}
	if !slices.Equal(manifest[0].RepoTags, []string{"mete-server:1.2.3-dirty"}) {
		t.Errorf("tags %q", manifest[0].RepoTags)
	}
	var c struct {
		Architecture, OS string
		Config           struct {
			User       string
			Entrypoint []string
		} `json:"config"`
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(image[manifest[0].Config], &c); err != nil {
		t.Fatal(err)
	}
	if c.Architecture != "amd64" || c.OS != "linux" || c.Config.User != "65532" || len(c.RootFS.DiffIDs) != 1 || c.Config.Entrypoint[0] != "/bin/mete-server" {
		t.Errorf("%+v", c)
	}
	layer := untar(t, image[manifest[0].Layers[0]])
	if string(layer["bin/mete-server"]) != "program mete-server" || string(layer["bin/mete"]) != "program mete" || len(layer) != 2 {
		t.Errorf("files %q", slices.Collect(maps.Keys(layer)))
	}
}

// A bill of materials lists the modules that are linked, replaced ones by what replaces them.
func TestBill(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(fake(t, "1.2.3").sbom("mete-agent"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"pkg:golang/example.org/a@v1.0.0", "pkg:golang/example.org/c@v2.0.0", "pkg:golang/std@1.26.1", "mete-agent"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the bill lacks %s", want)
		}
	}
	if strings.Contains(string(text), "example.org/b") {
		t.Error("the bill has a module that is not linked")
	}
}

// Unknown choices, a full directory and a tree with changes are refused.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-arch", "mips"}, {"-format", "zip"}, {"amd64"}} {
		if _, err := parseFlags(args); err == nil {
			t.Errorf("%q: accepted", args)
		}
	}
	dir := t.TempDir()
	if err := errors.Join(emptyDir(dir), os.WriteFile(filepath.Join(dir, "x"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := emptyDir(dir); err == nil {
		t.Error("a directory with files was accepted")
	}
	repo := t.TempDir()
	for _, args := range [][]string{{"init", "-q"}, {"-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "--allow-empty", "-m", "x"}} {
		if _, err := output(t.Context(), repo, "git", args...); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("tree", func(t *testing.T) {
		if _, err := openSource(t.Context(), repo, false); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(repo, "new"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := openSource(t.Context(), repo, false); err == nil || !strings.Contains(err.Error(), "new") {
			t.Errorf("a tree with changes: %v", err)
		}
		if _, err := openSource(t.Context(), repo, true); err != nil {
			t.Error(err)
		}
	})
}

// Two builds of one commit in different directories give the same bytes, on all architectures.
func TestReproducible(t *testing.T) {
	testkit.Stage(t, "release", "builds all programs three times")
	top, err := output(t.Context(), ".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		t.Fatal(err)
	}
	var sums []string
	for i := range 2 {
		tree, out := filepath.Join(t.TempDir(), fmt.Sprint("tree", i)), filepath.Join(t.TempDir(), "dist")
		if _, err := output(t.Context(), ".", "git", "clone", "-q", "--no-hardlinks", top, tree); err != nil {
			t.Fatal(err)
		}
		if _, err := output(t.Context(), tree, "go", "run", "./tools/release", "-out", out); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, string(b))
	}
	if sums[0] != sums[1] || strings.Count(sums[0], "\n") != 2*(1+3+3+2+4)+1 {
		t.Errorf("first:\n%s\nsecond:\n%s", sums[0], sums[1])
	}
	t.Log("\n" + sums[0])
}

// RPM accepts the packages and their sums.
func TestRPMAccepted(t *testing.T) {
	testkit.Stage(t, "release", "needs rpm")
	dir := t.TempDir()
	if err := fake(t, "1.2.3").rpms(dir); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "mete-server-1.2.3-1.x86_64.rpm")
	for _, c := range []struct{ query, want string }{
		{"-qpl", "/usr/lib/systemd/system/mete-server.service"}, {"-qpR", "mete-agent = 1.2.3-1"}, {"-qpc", "/etc/mete/server.env"}, {"-qp --scripts", "systemctl disable --now mete-server.service"},
	} {
		out, err := output(t.Context(), dir, "rpm", append(strings.Fields(c.query), "--nosignature", file)...)
		if err != nil || !strings.Contains(out, c.want) {
			t.Errorf("rpm %s: %v\n%s", c.query, err, out)
		}
	}
	if out, err := output(t.Context(), dir, "rpm", "-K", "--nosignature", file); err != nil || !strings.Contains(out, "OK") {
		t.Errorf("rpm -K: %v %s", err, out)
	}
}

// archiveMembers are the members of an ar archive.
type archiveMembers struct {
	names  []string
	bodies [][]byte
}

// readAr reads an ar archive strictly.
func readAr(b []byte) (m archiveMembers, err error) {
	b, ok := bytes.CutPrefix(b, []byte("!<arch>\n"))
	if !ok {
		return m, errors.New("no ar archive")
	}
	for len(b) > 0 {
		if len(b) < 60 || b[58] != '`' || b[59] != '\n' {
			return m, fmt.Errorf("no header in %q", b[:min(60, len(b))])
		}
		var size int
		if _, err := fmt.Sscanf(string(b[48:58]), "%d", &size); err != nil || 60+size > len(b) {
			return m, fmt.Errorf("size in %q: %v", b[:60], err)
		}
		m.names = append(m.names, strings.TrimSpace(string(b[:16])))
		m.bodies = append(m.bodies, b[60:60+size])
		b = b[60+size:]
		if size%2 == 1 {
			b = b[1:]
		}
	}
	return m, nil
}

// untar returns the files of a compressed archive.
func untar(t *testing.T, b []byte) map[string][]byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return untarPlain(t, plain)
}

func untarPlain(t *testing.T, b []byte) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if all[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}
