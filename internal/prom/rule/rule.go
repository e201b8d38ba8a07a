// Package rule holds the rules that every server evaluates, and knows when a
// receiver is to be told of an alert.
package rule

import _ "embed"

// File is the name under which the rules that are shipped are shown.
const File = "mete.yml"

// Shipped are the rules that are shipped, in Prometheus's format.
//
//go:embed mete.yml
var Shipped []byte
