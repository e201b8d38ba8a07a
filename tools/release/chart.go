package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// chartVersions are the lines of Chart.yaml that a release replaces.
var chartVersions = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)

// imageTags are the tags of images in a manifest.
var imageTags = regexp.MustCompile(`("mete-(?:agent|server):)[^"]*"`)

// chart writes the Helm chart for the images of the release. It is the same for all architectures.
func (b *built) chart(dir string) error {
	root := filepath.Join(b.root, "deploy/helm")
	var files []file
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if e.Name() == "Chart.yaml" {
			text = chartVersions.ReplaceAllFunc(text, func(line []byte) []byte {
				if line[0] == 'a' {
					return []byte(`appVersion: "` + imageTag(b.version) + `"`)
				}
				return []byte(`version: "` + b.version + `"`)
			})
		}
		files = append(files, file{path: name, mode: 0o644, body: text})
		return nil
	})
	if err != nil {
		return err
	}
	return create(dir, "mete-chart-"+b.version+".tgz", func(w io.Writer) error { return writeTarGz(w, "", b.time, files) })
}
