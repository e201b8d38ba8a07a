// Package wirewarm uses, when it is imported, the encoder and the decoder of package wire, which make channels at their first
// use. One that was made in a bubble of synctest ends the program when it is used outside: so tests in bubbles of packages
// that use wire import this package, and may run in any order.
package wirewarm

import (
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/replica"
)

func init() {
	page, err := wire.EncodeStates(nil, &replica.Page{})
	if err != nil {
		panic("codecs: " + err.Error())
	}
	if _, err := wire.DecodeStates(page, wire.Limits{Sent: len(page), Size: 1 << 10}); err != nil {
		panic("codecs: " + err.Error())
	}
}
