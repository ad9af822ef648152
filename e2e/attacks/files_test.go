//go:build slow && linux

package attacks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A config or an access file that a stranger wrote is refused with words, soon, and with little memory.
func TestHostileFiles(t *testing.T) {
	w := &world{T: t, dir: t.TempDir()}
	for name, text := range hostileFiles() {
		w.write("hostile.yaml", text)
		w.validates(name, "-f", "hostile.yaml")
		w.validates(name+" as access file", "--access", "hostile.yaml")
	}
	for _, path := range []string{"/dev/zero", "/dev/null", ".", "missing"} {
		w.validates(path, "-f", path)
	}
}

// validates runs `tidemill validate`, which must refuse the file.
func (w *world) validates(name string, args ...string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), healthyWithin)
	defer cancel()
	var out bytes.Buffer
	cmd := w.command(ctx, append([]string{"validate"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	switch exit := new(exec.ExitError); {
	case ctx.Err() != nil:
		w.Errorf("%s: no answer within %s", name, healthyWithin)
	case err == nil:
		w.Errorf("%s is valid: %.300s", name, out.String())
	case !errors.As(err, &exit) || exit.ExitCode() < 0 || crash.MatchString(out.String()):
		w.Errorf("%s: %v\n%.2000s", name, err, out.String())
	case out.Len() == 0 || out.Len() > 64<<10:
		w.Errorf("%s: the refusal has %d bytes: %.300q", name, out.Len(), out.String())
	}
	if used, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok && used.Maxrss<<10 > memoryBudget {
		w.Errorf("%s took %d MiB", name, used.Maxrss>>10)
	}
}

func hostileFiles() map[string]string {
	const valid = "version: 1\n"
	bomb := valid + "a: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 9 {
		bomb += fmt.Sprintf("b%d: &a%d [%s]\n", i, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	merge := valid + "m0: &m0 {a: 1}\n"
	for i := range 20 {
		merge += fmt.Sprintf("m%d: &m%d {<<: [*m%d, *m%d]}\n", i+1, i+1, i, i)
	}
	recipe := func(rest string) string {
		return valid + "recipes:\n  a:\n    when: {type: x}\n    run: {dir: ., command: [a]}\n    makes: {model: \"a/{key}\"}\n    " + rest + "\n"
	}
	trigger := func(where string) string {
		return valid + "triggers:\n  a:\n    when: {type: x, where: \"" + where + "\"}\n    to: {url: \"http://127.0.0.1:1\"}\n"
	}
	return map[string]string{
		"nothing":                  "",
		"a bomb of aliases":        bomb,
		"a bomb of merges":         merge,
		"an alias of itself":       valid + "streams: &a [*a]\n",
		"lists in lists":           valid + "streams: " + deep(100_000),
		"half of lists in lists":   strings.Repeat("[", 500_000),
		"maps in maps":             strings.Repeat("{a: ", 100_000),
		"deeper and deeper":        deeper(2000),
		"a long line":              valid + "name: " + strings.Repeat("a", 4<<20),
		"many streams":             valid + "streams:\n" + strings.Repeat("  a:\n", 50_000),
		"a strange tag":            valid + "name: !!python/object/apply:os.system [id]\n",
		"a binary":                 valid + "name: !!binary \"****\"\n",
		"a NUL":                    valid + "name: \"a\\0b\"\n",
		"invalid UTF-8":            valid + "name: \xff\xfe\n",
		"two documents":            valid + "---\n" + valid,
		"a huge number":            "version: 1e999999999\n",
		"a huge time":              valid + "streams: {a: {retention: 99999999999999999999d}}\n",
		"a cron without end":       valid + "schedules: {a: {cron: \"0 0 30 2 *\"}}\n" + trigger("true")[len(valid):] + "x: y\n",
		"a cron of nothing":        valid + "schedules: {a: {cron: \"@every 0s\"}}\n",
		"a cron out of range":      valid + "schedules: {a: {cron: \"99 99 99 99 99\"}}\n",
		"a filter of parentheses":  trigger(strings.Repeat("(", 100_000)),
		"a filter of NOTs":         trigger(strings.Repeat("NOT ", 100_000) + "true"),
		"a gate of parentheses":    recipe("gate: [\"" + strings.Repeat("(", 100_000) + "\"]"),
		"a gate of loops":          recipe("gate: [\"" + loops(40) + "\"]"),
		"a folder out of the tree": recipe("gate: 7") + "  b: {run: {dir: ../../../../etc, command: [a]}}\n",
		"a token":                  valid + "tokens: {a: {hash: tm_" + strings.Repeat("a", 43) + ", role: approve}}\n",
	}
}

// deeper returns a map in a map, a line for each.
func deeper(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

// loops returns loops in one another, each over a list.
func loops(n int) string {
	text := "x"
	for range n {
		text = "[1, 2, 3, 4, 5, 6, 7, 8, 9].all(x, " + text + ")"
	}
	return text
}

// A file that the process follows may become hostile while it runs. The last valid one stays in force.
func TestFilesBecomeHostile(t *testing.T) {
	w := openWorld(t, nil)
	const refused = `"name":"access","status":"degraded"`
	config, access := worldConfig, w.read("access.yaml")
	for _, name := range []string{"a bomb of aliases", "half of lists in lists", "a long line", "a filter of parentheses"} {
		w.write("tidemill.yaml", hostileFiles()[name])
		w.write("access.yaml", hostileFiles()[name])
		w.waitFor(func() bool { return strings.Contains(w.readiness(), refused) })
		w.healthy("with " + name)
		w.write("tidemill.yaml", config)
		w.write("access.yaml", access)
		w.waitFor(func() bool { return !strings.Contains(w.readiness(), refused) })
	}
}

func (w *world) read(name string) string {
	w.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, name))
	if err != nil {
		w.Fatal(err)
	}
	return string(text)
}

func (w *world) readiness() string { return w.do(w.request("GET", "/readyz", "", "reader")).body }
