package main

import (
	"bytes"
	"crypto/md5" // the format has these sums; they protect nothing
	"fmt"
	"io"
	"strings"
)

// debVersion returns a version as Debian and RPM order them: 1.2.3~rc.1 comes before 1.2.3. A
// hyphen would begin the revision of the package.
func debVersion(v string) string {
	return strings.ReplaceAll(strings.Replace(v, "-", "~", 1), "-", ".")
}

// debs writes the packages for Debian.
func (b *built) debs(dir string) error {
	all, err := b.packs()
	if err != nil {
		return err
	}
	for i := range all {
		p := &all[i]
		name := fmt.Sprintf("%s_%s_%s.deb", p.name, debVersion(b.version), b.arch)
		if err := create(dir, name, func(w io.Writer) error { return b.deb(w, p) }); err != nil {
			return err
		}
	}
	return nil
}

// deb writes a package as deb(5) describes it: an ar archive of the format's version, the control
// files and the files.
func (b *built) deb(w io.Writer, p *pack) error {
	var control, data bytes.Buffer
	if err := writeTarGz(&control, "./", b.time, b.controlFiles(p)); err != nil {
		return err
	}
	if err := writeTarGz(&data, ".", b.time, p.files); err != nil {
		return err
	}
	if _, err := io.WriteString(w, "!<arch>\n"); err != nil {
		return err
	}
	for _, m := range []struct {
		name string
		body []byte
	}{{"debian-binary", []byte("2.0\n")}, {"control.tar.gz", control.Bytes()}, {"data.tar.gz", data.Bytes()}} {
		// Name, time, owner, group, mode and size; members begin at even offsets.
		if _, err := fmt.Fprintf(w, "%-16s%-12d%-6d%-6d%-8o%-10d`\n%s", m.name, b.time.Unix(), 0, 0, 0o100644, len(m.body), m.body); err != nil {
			return err
		}
		if len(m.body)%2 == 1 {
			if _, err := io.WriteString(w, "\n"); err != nil {
				return err
			}
		}
	}
	return nil
}

// controlFiles returns the control files of a package, deb-control(5).
func (b *built) controlFiles(p *pack) []file {
	var sums, kept strings.Builder
	size := 0
	for _, f := range sorted(p.files) {
		size += len(f.body)
		if f.config {
			fmt.Fprintln(&kept, f.path)
			continue
		}
		fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(f.body), strings.TrimPrefix(f.path, "/"))
	}
	var control strings.Builder
	fmt.Fprintf(&control, "Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nInstalled-Size: %d\nSection: admin\nPriority: optional\nHomepage: %s\n",
		p.name, debVersion(b.version), b.arch, maintainer, (size+1023)/1024, homepage)
	relation := func(title string, names []string) {
		var all []string
		for _, n := range names {
			all = append(all, fmt.Sprintf("%s (= %s)", n, debVersion(b.version)))
		}
		if len(all) > 0 {
			fmt.Fprintf(&control, "%s: %s\n", title, strings.Join(all, ", "))
		}
	}
	relation("Depends", p.needs)
	relation("Recommends", p.recommends)
	fmt.Fprintf(&control, "Description: %s\n %s\n", p.summary, p.about)
	const begin = "#!/bin/sh\nset -e\n"
	when := func(argument, script string) string {
		if script == "" {
			return ""
		}
		return "if [ \"$1\" = " + argument + " ]; then\n" + script + "fi\n"
	}
	return append([]file{
		{path: "control", mode: 0o644, body: []byte(control.String())},
		{path: "md5sums", mode: 0o644, body: []byte(sums.String())},
		{path: "postinst", mode: 0o755, body: []byte(begin + when("configure", p.reload()))},
		{path: "prerm", mode: 0o755, body: []byte(begin + when("remove", p.stop()))},
		{path: "postrm", mode: 0o755, body: []byte(begin + p.forget() + when("purge", p.purge()))},
	}, conffiles(kept.String())...)
}

// conffiles is the list of files that an upgrade keeps.
func conffiles(list string) []file {
	if list == "" {
		return nil
	}
	return []file{{path: "conffiles", mode: 0o644, body: []byte(list)}}
}
