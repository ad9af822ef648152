package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteUnits are those of Kubernetes, with or without a B behind them.
var byteUnits = map[string]int64{
	"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}

// readBytes reads a size within bounds, such as 2Gi or 500MB.
func readBytes(to *int64, low, high int64) func(value) {
	return func(v value) {
		text, ok := v.scalar()
		if !ok {
			return
		}
		n, err := parseBytes(text)
		switch {
		case err != nil:
			v.problem("%s", err)
		case n < low || n > high:
			v.problem("must be from %s to %s, not %s", showBytes(low), showBytes(high), show(text))
		default:
			*to = n
		}
	}
}

func parseBytes(s string) (int64, error) {
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	number, unit := s[:digits], strings.TrimSuffix(s[digits:], "B")
	factor, known := byteUnits[unit]
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case digits == 0 || strings.HasPrefix(unit, "."):
		return 0, fmt.Errorf("must be a whole number of bytes with a unit, such as 500MB or 2Gi, not %s", show(s))
	case !known:
		return 0, fmt.Errorf("%s has an unknown unit; use k, M, G, T or Ki, Mi, Gi, Ti, as in 2Gi", show(s))
	case s == number:
		return 0, fmt.Errorf("%s has no unit; write one, such as 500MB or 2Gi", show(s))
	case err != nil || n > math.MaxInt64/factor:
		return 0, fmt.Errorf("%s is too much", show(s))
	}
	return n * factor, nil
}

// showBytes is the shortest text that parseBytes reads back.
func showBytes(n int64) string {
	for _, unit := range []string{"Ti", "T", "Gi", "G", "Mi", "M", "Ki", "k"} {
		if n != 0 && n%byteUnits[unit] == 0 {
			return strconv.FormatInt(n/byteUnits[unit], 10) + unit
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

const (
	minCores = 0.001
	maxCores = 1024
)

// readCores reads processors, such as 0.5 or 500m.
func readCores(to *float64) func(value) {
	return func(v value) {
		text, ok := v.scalar()
		if !ok {
			return
		}
		number, milli := strings.CutSuffix(text, "m")
		n, err := strconv.ParseFloat(number, 64)
		if milli {
			n /= 1000
		}
		switch {
		case err != nil || strings.Trim(number, "0123456789.") != "":
			v.problem("must be a number of processors, such as 2, 0.5 or 500m, not %s", show(text))
		case n < minCores || n > maxCores:
			v.problem("must be from 1m to %d processors, not %s", maxCores, show(text))
		default:
			*to = n
		}
	}
}
