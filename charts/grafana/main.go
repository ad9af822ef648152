// Command grafana writes the Grafana dashboard of Tidemill as a JSON file:
//
//	make dashboard
//
// It is a separate module, because no other part of Tidemill needs Grafana's library and
// Prometheus's parser.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
)

func main() {
	to := flag.String("o", "../tidemill/dashboards/tidemill.json", "file to write")
	flag.Parse()
	if err := write(*to); err != nil {
		fmt.Fprintln(os.Stderr, "grafana:", err)
		os.Exit(1)
	}
}

func write(path string) error {
	text, err := boardJSON()
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("write the dashboard: %w", err)
	}
	return nil
}

// boardJSON returns the dashboard as the file has it.
func boardJSON() ([]byte, error) {
	b, err := board()
	if err != nil {
		return nil, fmt.Errorf("build the dashboard: %w", err)
	}
	text, err := json.MarshalIndent(b, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encode the dashboard: %w", err)
	}
	return append(text, '\n'), nil
}
