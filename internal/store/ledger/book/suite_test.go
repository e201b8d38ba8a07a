package book_test

import (
	"testing"

	"mete.dev/mete/internal/testkit/ledgertest"
)

// TestSuite runs the part of the suite of ledgers that is about booking.
func TestSuite(t *testing.T) { ledgertest.RunBooking(t, ledgertest.SQLite) }
