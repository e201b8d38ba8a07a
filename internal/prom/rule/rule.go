// Package rule holds the rules that every server evaluates, parses power caps, and decides when
// a receiver is notified of an alert. Package alert evaluates and notifies.
package rule

import _ "embed"

// File is the file name that rule listings show for the shipped rules.
const File = "mete.yml"

// Shipped are the built-in rules in Prometheus's format.
//
//go:embed mete.yml
var Shipped []byte
