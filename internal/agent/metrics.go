package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

const (
	metricsName    = "metrics.json"
	maxMetricsFile = 4 << 20
	maxMetrics     = 1000
	maxMetricNames = 64 << 10 // bytes of all names: they go into a fact
)

// metricsOf reads what the command has measured. No file is no metrics.
func metricsOf(out string) (all map[string]float64, left int, err error) {
	text, err := readFile(out, metricsName, maxMetricsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, permanent("read %s: %w", metricsName, err)
	}
	o, err := object(text)
	if err != nil {
		return nil, 0, permanent("%s %w", metricsName, err)
	}
	all = map[string]float64{}
	numbers(all, "", o)
	return all, atMost(all, maxMetrics, maxMetricNames), nil
}

// readFile reads a file of the command's, which may be anything.
func readFile(folder, name string, most int64) ([]byte, error) {
	f, err := openFile(folder, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("it is larger than %d MiB: what is large belongs into another file", most>>20)
	}
	return text, err
}

// openFile opens a file beneath a folder and nowhere else, and only a file: to
// open a pipe would wait.
func openFile(folder, name string) (*os.File, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_RDONLY|nonBlocking, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no file")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
