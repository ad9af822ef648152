package main

import (
	"errors"
	"strconv"
	"strings"

	"tidemill.dev/internal/platform"
)

// scoringFlags say what the models that answer here may take.
type scoringFlags struct{ memory, cache string }

func (m *scoringFlags) flags(f *flagSet) {
	f.text(&m.memory, "model-memory", "", "SIZE", "what models may take in memory, such as 512MiB or 4GiB (default 1GiB)")
	f.text(&m.cache, "model-cache", "", "FOLDER", "where fetched models are kept (default models in the data folder of tidemill up, nowhere elsewhere)")
	f.fromEnv("model-memory", "TIDEMILL_MODEL_MEMORY")
	f.fromEnv("model-cache", "TIDEMILL_MODEL_CACHE")
}

func (m *scoringFlags) accept() error {
	if _, err := parseMemory(m.memory); err != nil {
		return usagef("--model-memory %q: %v", m.memory, err)
	}
	return nil
}

func (m *scoringFlags) options() platform.ScoringOptions {
	memory, _ := parseMemory(m.memory) // accept has looked
	return platform.ScoringOptions{Memory: memory, Dir: m.cache}
}

const (
	leastMemory = 16 << 20
	mostMemory  = 1 << 42
)

// parseMemory reads a size; nothing is 0, which is the default.
func parseMemory(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	number, factor := text, int64(1)
	for i, unit := range []string{"MiB", "GiB", "TiB"} {
		if n, ok := strings.CutSuffix(text, unit); ok {
			number, factor = n, 1<<(10*(i+2))
		}
	}
	n, err := strconv.ParseUint(number, 10, 42)
	if err != nil || int64(n) > mostMemory/factor || int64(n)*factor < leastMemory {
		return 0, errors.New("give 16MiB to 4TiB, such as 512MiB or 4GiB")
	}
	return int64(n) * factor, nil
}
