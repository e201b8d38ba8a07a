package attack_test

import (
	"os"
	"testing"

	"mete.dev/mete/internal/testkit/attack"
	"mete.dev/mete/internal/testkit/otheruser"
)

// programs are the real programs, built once.
var programs = &attack.Programs{}

func TestMain(m *testing.M) {
	attack.Main()
	otheruser.Main()
	if err := os.Setenv("METE_HOST_VSOCK", "false"); err != nil { // tests must not query the real host
		panic(err)
	}
	code := m.Run()
	programs.Remove()
	os.Exit(code)
}
