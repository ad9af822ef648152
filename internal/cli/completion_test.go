package cli

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/platform"
)

const completionConfig = `version: 1
streams: {messages: {types: [message]}, scored: }
schedules: {nightly: {cron: "0 3 * * *"}}
pools: {small: {slots: 1}}
triggers:
  tell-crm: {when: {type: bot-deleted}, to: {url: "http://127.0.0.1:1/"}}
recipes:
  intent:
    when: {type: bot-created}
    run: {dir: trainer, command: [sh, train.sh], pool: small, attempts: 1}
    makes: {model: "intent/{key}"}
scorers:
  intents: {from: messages, to: scored, model: "intent/{key}"}
`

// offered calls the program as the script of a shell does, and returns what it offers for the last word.
func offered(t *testing.T, words ...string) (names []string) {
	t.Helper()
	o := call(t, "", append([]string{"__complete"}, words...)...)
	lines := strings.Split(strings.TrimSuffix(o.out, "\n"), "\n")
	last := len(lines) - 1
	if o.code != 0 || !strings.HasPrefix(lines[last], ":") {
		t.Fatalf("%q: exit %d, %q, %q", words, o.code, o.out, o.err)
	}
	for _, line := range lines[:last] {
		name, _, _ := strings.Cut(line, "\t")
		names = append(names, name)
	}
	return names
}

// Completion offers the names that the gateway knows. A busy machine may take longer than completion
// waits, so it is called until it offers the name.
func TestNamesAreCompleted(t *testing.T) {
	t.Parallel()
	dir, file := runsFolder(t, completionConfig)
	r := runsAt{t, filepath.Join(dir, "data")}
	startUp(t, r.data, "-f", file)
	r.ok("data", "put", "bots/bot-1", filepath.Join(dir, "trainer"))
	r.ok("runs", "start", "intent", "--key", "bot-1")
	run := r.is("bot-1", tidemill.RunSucceeded)
	for words, want := range map[string]string{
		"tail ": "messages", "publish message --stream ": "scored", "triggers show ": "tell-crm", "dl --trigger ": "tell-crm", "dl --scorer ": "intents",
		"schedules pause ": "nightly", "recipes pause ": "intent", "pools pause ": "small", "runs start ": "intent", "runs --recipe ": "intent",
		"runs start intent --key ": "bot-1", "models --key ": "bot-1", "runs show ": run, "logs " + run[:4]: run, "runs cancel " + run + " ": run,
		"models show ": "intent/bot-1", "promote intent/b": "intent/bot-1", "compare intent/bot-1 ": "intent/bot-1",
		"scorers ": "intents", "score ": "intents", "data log ": "bots/bot-1",
		"promote intent/bot-1@": "intent/bot-1@1", "why model/intent/bot-1@n": "model/intent/bot-1@newest", "why run/": "run/" + run, "why commit/bots": "commit/bots/bot-1", "why mo": "model/",
	} {
		eventually(t, func() bool {
			return slices.Contains(offered(t, append([]string{"--data", r.data}, strings.Split(words, " ")...)...), want)
		})
	}
	eventually(t, func() bool { return slices.Equal(offered(t, "--data", r.data, "tail", "mess"), []string{"messages"}) })
	t.Run("bash", func(t *testing.T) { completedInBash(t, r.data) })
}

// completedInBash loads the script into a real bash and calls the function that the Tab key calls.
func completedInBash(t *testing.T, data string) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	dir := t.TempDir()
	program := leave(t, "#!"+bash+"\n"+asMain+"=1 exec '"+os.Args[0]+"' \"$@\"\n", dir, "tidemill")
	if err := os.Chmod(program, 0o700); err != nil {
		t.Fatal(err)
	}
	leave(t, ok(t, "completion", "bash"), dir, "script")
	const press = `
. script
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*"
COMP_POINT=${#COMP_LINE}
[[ $(complete -p tidemill) == *"-F __start_tidemill tidemill" ]] && __start_tidemill tidemill && printf '%s\n' "${COMPREPLY[@]}"`
	const withPackage = `for package in /usr/share/bash-completion/bash_completion /etc/bash_completion; do [ ! -r $package ] || . $package; done`
	for words, want := range map[string]string{"--data " + data + " tail mess": "messages\n", "--data " + data + " promote intent/b": "intent/bot-1\n", "--data " + data + " promote intent/bot-1@n": "newest\n", "complet": "completion\n", "completion ": "bash\nzsh\nfish\n"} {
		for _, before := range []string{"", withPackage} {
			eventually(t, func() bool {
				tab := exec.CommandContext(t.Context(), bash, append([]string{"--norc", "--noprofile", "-c", before + press, bash, "tidemill"}, strings.Split(words, " ")...)...)
				tab.Dir, tab.Env = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
				out, _ := tab.Output() // the status is that of bash's own compopt, which works only after a real key
				return string(out) == want
			})
		}
	}
}

// What needs no gateway is completed without one.
func TestWordsAreCompleted(t *testing.T) {
	t.Parallel()
	for words, want := range map[string][]string{
		"rec":                          {"recipes"},
		"runs st":                      {"start"},
		"help models pro":              {"promote"},
		"help pro":                     {"promote", "promotions"},
		"runs --sta":                   {"--state"},
		"runs -o ":                     {"text", "json"},
		"completion ":                  {"bash", "zsh", "fish"},
		"serve function ":              platform.Functions(),
		"tail --log ":                  {"debug", "info", "warn", "error"},
		"completion bash ":             nil,
		"--data none tail ":            nil, // no server runs
		"--data none runs show ":       nil,
		"--data none dl --trigger ":    nil,
		"--url http://127.0.0.1:1 dl ": nil,
		"runs --frobnicate ":           nil,
	} {
		if got := offered(t, strings.Split(words, " ")...); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", words, got, want)
		}
	}
}

// A gateway that does not answer delays the prompt for 300 ms, and nothing is printed. The network and
// the time are virtual.
func TestAHangingGatewayIsNotWaitedFor(t *testing.T) {
	for name, answered := range map[string]string{"all requests": "", "what comes after the greeting": "/healthz"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out, errs strings.Builder
				var serving sync.WaitGroup
				s := &command.Session{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
				s.Network.Dial = func(context.Context, string, string) (net.Conn, error) {
					ours, theirs := net.Pipe()
					serving.Go(func() { hang(theirs, answered) })
					return ours, nil
				}
				began := time.Now()
				if err := everything().Execute(t.Context(), s, []string{"__complete", "--url", "http://127.0.0.1:1", "tail", ""}, nil); err != nil || out.String() != ":4\n" {
					t.Errorf("%v, %q, %q", err, &out, &errs)
				}
				if took := time.Since(began); took != 300*time.Millisecond {
					t.Errorf("it took %s", took)
				}
				synctest.Wait() // a connection that is being opened adds to serving
				serving.Wait()
			})
		})
	}
}

// hang reads the requests of a connection, and answers only those for one path.
func hang(c net.Conn, answered string) {
	defer c.Close()
	for r := bufio.NewReader(c); ; {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if req.URL.Path == answered {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	}
}

// The scripts of all shells are made, and each shell that is here can read its own.
func TestTheScriptsOfShells(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := ok(t, "completion", shell)
		mention(t, shell, script, "tidemill", "__complete")
		if program, err := exec.LookPath(shell); err == nil {
			if out, err := exec.CommandContext(t.Context(), program, "-n", leave(t, script, t.TempDir(), "script")).CombinedOutput(); err != nil {
				t.Errorf("%s -n: %v %s", shell, err, out)
			}
		}
	}
	if o := call(t, "", "completion", "basch"); o.code != exitUsage || !strings.Contains(o.err, "did you mean bash?") {
		t.Errorf("exit %d, %q", o.code, o.err)
	}
}
