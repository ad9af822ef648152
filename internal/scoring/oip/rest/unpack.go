package rest

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"io"

	"tidemill.dev/internal/scoring/infer"
)

// unpacked returns a body without its content encoding: gzip, or deflate, which is zlib's format. The
// memory is taken from the request's budget before it is used, because a body can be a thousand times
// as large as it was sent.
func unpacked(ctx context.Context, encoding string, body []byte, most int64) ([]byte, error) {
	var from io.ReadCloser
	var err error
	switch encoding {
	case "", "identity":
		return body, nil
	case "gzip", "x-gzip":
		from, err = gzip.NewReader(bytes.NewReader(body))
	case "deflate":
		from, err = zlib.NewReader(bytes.NewReader(body))
	default:
		return nil, badf("the content encoding %.20q is not read here: use gzip or deflate, or none", encoding)
	}
	if err != nil {
		return nil, badf("the body is not %s: %v", encoding, err)
	}
	budget := infer.BudgetOf(ctx)
	var plain []byte
	for err == nil {
		if len(plain) == cap(plain) {
			size := max(2*cap(plain), 64<<10)
			if budget != nil {
				if err := budget.Take(int64(size)); err != nil {
					return nil, err
				}
			}
			plain = append(make([]byte, 0, size), plain...)
		}
		var n int
		n, err = from.Read(plain[len(plain):cap(plain)])
		if plain = plain[:len(plain)+n]; int64(len(plain)) > most {
			return nil, tooLarge(most)
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, badf("the body is not %s: %v", encoding, err)
	}
	return plain, nil
}
