// Command grafana generates the files that provision Grafana, below the given directory: a
// data source, the location of dashboards, and the dashboards.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

//go:generate go run . ../../deploy/grafana

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: grafana DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "grafana:", err)
		os.Exit(1)
	}
}

// write writes all files below a directory.
func write(dir string) error {
	all, err := files()
	if err != nil {
		return err
	}
	for name, content := range all {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// files returns the contents of all files, by path.
func files() (map[string][]byte, error) {
	all := map[string][]byte{
		"provisioning/datasources/mete.yaml": []byte(dataSource),
		"provisioning/dashboards/mete.yaml":  []byte(provider),
	}
	for _, b := range boards() {
		text, err := b.render()
		if err != nil {
			return nil, err
		}
		all["dashboards/"+b.uid+".json"] = text
	}
	return all, nil
}

// uid is the data source's id in the dashboards.
const uid = "mete"

const header = "# Made by: go generate ./tools/grafana\n"

// dataSource reads address, token and certificate from Grafana's environment.
const dataSource = header + `apiVersion: 1
datasources:
  - name: mete
    uid: ` + uid + `
    type: prometheus
    access: proxy
    url: $METE_URL
    jsonData:
      httpMethod: POST
      timeInterval: 10s
      prometheusType: Prometheus
      tlsAuthWithCACert: true
      httpHeaderName1: Authorization
    secureJsonData:
      # A token of the role viewer; one of a cluster sees that cluster alone.
      httpHeaderValue1: Bearer $METE_TOKEN
      tlsCACert: $METE_CA
`

const provider = header + `apiVersion: 1
providers:
  - name: mete
    folder: mete
    type: file
    disableDeletion: true
    allowUiUpdates: false
    options:
      path: /var/lib/grafana/dashboards/mete
`
