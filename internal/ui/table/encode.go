package table

import (
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/x/text"
)

// Encode returns an answer in a form of the flag -o: csv, json, or else the table that write
// returns. JSON has no characters that control a terminal.
func Encode(form string, answer v1.Table, write func() string) []byte {
	switch form {
	case "csv":
		return v1.CSV(answer)
	case "json":
		return text.JSON(v1.JSON(answer))
	}
	return []byte(write())
}
