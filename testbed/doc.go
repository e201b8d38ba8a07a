// Package testbed has no code: its module pins the programs of test clusters.
package testbed
