package platform

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Running says where a laptop's Tidemill can be reached. It lies in the data
// folder, so that commands find it without being told.
type Running struct {
	PID    int    `json:"pid"`
	Name   string `json:"name"`
	Kafka  string `json:"kafka"`
	Redis  string `json:"redis"`
	HTTP   string `json:"http"`
	URL    string `json:"url"`    // of the gateway, as a client on this machine calls it
	Config string `json:"config"` // absolute path; there need be no such file
}

// AddressFile is where a data folder keeps the addresses.
func AddressFile(dir string) string { return filepath.Join(dir, "addresses.json") }

// Write leaves the addresses in a data folder, whole or not at all.
func (r Running) Write(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	file := AddressFile(dir)
	if err := os.WriteFile(file+".new", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the addresses: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("write the addresses: %w", err)
	}
	return nil
}

// Forget takes the addresses away.
func Forget(dir string) error {
	err := os.Remove(AddressFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Find reads the addresses from a data folder. It is false if there are none:
// nothing runs there, or it was stopped in good order.
func Find(dir string) (Running, bool, error) {
	var r Running
	text, err := os.ReadFile(AddressFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return r, false, fmt.Errorf("read the addresses: %s: %w; start tidemill up again, or say where the gateway is with --url", AddressFile(dir), err)
	}
	return r, true, nil
}
