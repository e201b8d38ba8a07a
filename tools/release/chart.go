package main

import (
	"io"
	"regexp"
)

// chartVersions are the lines of Chart.yaml that a release replaces.
var chartVersions = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)

// imageTags are the tags of images in a manifest.
var imageTags = regexp.MustCompile(`("mete-(?:agent|server):)[^"]*"`)

// chart writes the Helm chart for the images of the release. It is the same for all architectures.
func (b *built) chart(dir string) error {
	files, err := b.tree("deploy/helm", "deploy/helm")
	if err != nil {
		return err
	}
	for i, f := range files {
		if f.path == "mete/Chart.yaml" {
			files[i].body = chartVersions.ReplaceAllFunc(f.body, func(line []byte) []byte {
				if line[0] == 'a' {
					return []byte(`appVersion: "` + imageTag(b.version) + `"`)
				}
				return []byte(`version: "` + b.version + `"`)
			})
		}
	}
	return create(dir, "mete-chart-"+b.version+".tgz", func(w io.Writer) error { return writeTarGz(w, "", b.time, files) })
}
