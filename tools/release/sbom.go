package main

import (
	"crypto/sha256"
	"fmt"
	"io"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sboms writes a bill of materials for each program: the modules that are linked into it, as the
// program itself states them.
func (b *built) sboms(dir string) error {
	for _, p := range programs {
		bom := b.sbom(p)
		if err := create(dir, fmt.Sprintf("%s-%s_linux_%s.cdx.json", p, b.version, b.arch), func(w io.Writer) error {
			return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
		}); err != nil {
			return err
		}
	}
	return nil
}

// sbom returns the CycloneDX bill of materials of a program. A package URL (purl) identifies each
// component.
func (b *built) sbom(program string) *cdx.BOM {
	info := b.infos[program]
	purl := func(path, version string) string { return "pkg:golang/" + path + "@" + version }
	top := purl(info.Main.Path, info.Main.Version) + "#cmd/" + program
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: b.time.Format("2006-01-02T15:04:05Z"),
		Component: &cdx.Component{BOMRef: top, Type: cdx.ComponentTypeApplication, Name: program, Version: b.version, PackageURL: top,
			Licenses: &cdx.Licenses{{License: &cdx.License{ID: license}}},
			Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sha256.Sum256(b.files[program]))}}},
	}
	// GoVersion begins with "go", the version of a purl does not.
	components := []cdx.Component{{BOMRef: purl("std", info.GoVersion[2:]), Type: cdx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion[2:], PackageURL: purl("std", info.GoVersion[2:])}}
	var names []string
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		ref := purl(m.Path, m.Version)
		components = append(components, cdx.Component{BOMRef: ref, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: ref,
			// The checksum of the module's files, as in go.sum.
			Properties: &[]cdx.Property{{Name: "golang:h1", Value: m.Sum}}})
	}
	for _, c := range components {
		names = append(names, c.BOMRef)
	}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: top, Dependencies: &names}}
	return bom
}
