package replica_test

import (
	"testing"

	"mete.dev/mete/internal/testkit/ledgertest"
)

func TestMain(m *testing.M) { ledgertest.Main(m) }
