package hosttest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"testing"
)

// ContainerID returns an id that no container of another test or process on this machine has: one container in two groups
// is one workload.
func ContainerID(t testing.TB) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", t.Name(), os.Getpid()))
	return hex.EncodeToString(sum[:])
}
