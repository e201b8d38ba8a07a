package main

import (
	"fmt"
	"strings"

	"github.com/google/rpmpack"
)

// rpmArch are RPM's names of architectures.
var rpmArch = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// rpms writes the packages for RPM.
func (b *built) rpms(dir string) error {
	all, err := b.packs()
	if err != nil {
		return err
	}
	for i := range all {
		p := &all[i]
		r, err := b.rpm(p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if err := create(dir, fmt.Sprintf("%s-%s-1.%s.rpm", p.name, debVersion(b.version), rpmArch[b.arch]), r.Write); err != nil {
			return err
		}
	}
	return nil
}

func (b *built) rpm(p *pack) (*rpmpack.RPM, error) {
	m := rpmpack.RPMMetaData{Name: p.name, Summary: p.summary, Description: p.about, Version: debVersion(b.version), Release: "1", Arch: rpmArch[b.arch],
		Vendor: "mete", Packager: maintainer, URL: homepage, Licence: license, BuildHost: "mete.dev", BuildTime: b.time, Compressor: "gzip:6"}
	for _, n := range p.needs {
		if err := m.Requires.Set(n + "=" + m.Version + "-" + m.Release); err != nil {
			return nil, err
		}
	}
	for _, n := range p.recommends {
		if err := m.Recommends.Set(n + "=" + m.Version + "-" + m.Release); err != nil {
			return nil, err
		}
	}
	r, err := rpmpack.NewRPM(m)
	if err != nil {
		return nil, err
	}
	for _, f := range sorted(p.files) {
		kind := rpmpack.GenericFile
		switch {
		case f.config:
			kind = rpmpack.ConfigFile | rpmpack.NoReplaceFile
		case strings.HasPrefix(f.path, "/usr/share/doc/"):
			kind = rpmpack.DocFile
		}
		r.AddFile(rpmpack.RPMFile{Name: f.path, Body: f.body, Mode: uint(f.mode), Owner: "root", Group: "root", MTime: uint32(b.time.Unix()), Type: kind})
	}
	// The argument is how many versions of the package are installed afterwards.
	r.AddPostin(p.reload())
	if s := p.stop(); s != "" {
		r.AddPreun("if [ \"$1\" = 0 ]; then\n" + s + "fi\n")
	}
	r.AddPostun(p.forget())
	return r, nil
}
