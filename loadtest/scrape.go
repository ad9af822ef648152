package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// histogram is one of the gateway's histograms, with its series added up. It has the number of
// observations up to each bound, in seconds.
type histogram map[float64]float64

// metrics are the histograms of one scrape.
type metrics map[string]histogram

func scrape(ctx context.Context, addr string, names ...string) (metrics, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the gateway for its metrics: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask the gateway for its metrics: it answers %s", res.Status)
	}
	return parseMetrics(res.Body, names)
}

func parseMetrics(r io.Reader, names []string) (metrics, error) {
	m := metrics{}
	for _, name := range names {
		m[name] = histogram{}
	}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), "_bucket{")
		h, wanted := m[name]
		if !wanted {
			continue
		}
		_, after, _ := strings.Cut(rest, `le="`)
		le, _, _ := strings.Cut(after, `"`)
		bound, err := strconv.ParseFloat(le, 64)
		if err != nil {
			return nil, fmt.Errorf("read the metric %s: %w", lines.Text(), err)
		}
		count, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("read the metric %s: %w", lines.Text(), err)
		}
		h[bound] += count
	}
	return m, lines.Err()
}

// difference returns the observations between two scrapes.
func (h histogram) difference(before histogram) histogram {
	d := histogram{}
	for bound, count := range h {
		d[bound] = count - before[bound]
	}
	return d
}

// quantile interpolates as Prometheus does: evenly within a bucket. A quantile above the last bound
// is reported as that bound plus 1 ns.
func (h histogram) quantile(q float64) time.Duration {
	rank := q * h[math.Inf(1)]
	below, lower := 0.0, 0.0
	for _, bound := range slices.Sorted(maps.Keys(h)) {
		switch {
		case h[bound] < rank || h[bound] == below:
			below, lower = h[bound], bound
			continue
		case math.IsInf(bound, 1):
			return seconds(lower) + 1
		}
		return seconds(lower + (bound-lower)*(rank-below)/(h[bound]-below))
	}
	return 0
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
