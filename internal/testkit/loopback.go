package testkit

import (
	"fmt"
	"os"
)

// Loopback returns a loopback address that only this process uses: no other program takes a port of it while the program
// that listened there is down.
func Loopback() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 64+pid>>16&63, pid>>8&255, pid&255)
}
