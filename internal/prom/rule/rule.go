// Package rule holds the rules that every server evaluates, and decides when a receiver is
// notified of an alert.
package rule

import _ "embed"

// File is the file name that rule listings show for the shipped rules.
const File = "mete.yml"

// Shipped are the built-in rules in Prometheus's format.
//
//go:embed mete.yml
var Shipped []byte
