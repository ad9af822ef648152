//go:build linux

package box

import (
	"encoding/json"
	"fmt"
	"os"
)

// Plan lists the programs that run in a sandbox, in order. The box fills in Place and Subnet.
type Plan struct {
	Place      Place
	Subnet     Subnet
	Cache      string      // folder that is mounted at Place.Programs
	CA         []byte      // authority that probes trust
	Before     []Component // programs that run to their ends first, one after another
	Components []Component
}

// Component is a program that must run as long as the sandbox does.
type Component struct {
	Name string
	Path string
	Args []string
	Env  []string
	// After lists the conditions for its start.
	After []Probe
}

// Probe is a file that exists or a URL that answers 200.
type Probe struct {
	File string `json:",omitempty"`
	URL  string `json:",omitempty"`
}

func (p Plan) write(file string) error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return fmt.Errorf("write the sandbox's plan: %w", err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return fmt.Errorf("write the sandbox's plan: %w", err)
	}
	return nil
}

func readPlan(file string) (Plan, error) {
	var p Plan
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err != nil {
		return p, fmt.Errorf("read the sandbox's plan: %w", err)
	}
	return p, nil
}
