package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tidemill.dev/internal/cli/command"
)

func TestHelpListsEveryCommandWithAnExample(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"help"}, {}, {"--help"}} {
		out := ok(t, args...)
		for _, c := range everything().Commands() {
			word, _, below := strings.Cut(c.Name, " ")
			mention(t, "help", out, word)
			if below {
				mention(t, "help "+word, ok(t, "help", word), "  "+c.Name+" ", c.Summary, c.Examples[0][0])
			}
			if c.Daily {
				mention(t, "help", out, c.Summary)
			}
		}
	}
	for _, c := range everything().Commands() {
		name := strings.Fields(c.Name)
		mention(t, c.Name+" --help", ok(t, append(name, "--help")...), c.Summary, c.Examples[0][0])
		if got := ok(t, append([]string{"help"}, name...)...); got != ok(t, append(name, "-h")...) {
			t.Errorf("help %s and %s -h differ", c.Name, c.Name)
		}
		if c.Short != "" {
			mention(t, c.Short+" --help", ok(t, c.Short, "--help"), c.Summary, "Also: "+c.Name)
		}
	}
}

func TestEachExampleParses(t *testing.T) {
	t.Parallel()
	for _, c := range everything().Commands() {
		for _, e := range c.Examples {
			for _, line := range strings.Split(e[0], " | ") {
				words := shellWords(t, line)
				if words[0] != "tidemill" {
					t.Fatalf("%s does not begin with tidemill", line)
				}
				if _, err := parse(words[1:], func(string) string { return "" }); err != nil {
					t.Errorf("%s: %v", line, err)
				}
			}
		}
	}
}

// Each noun that has a list lists alone, with list, with ls, and in the singular.
func TestEachNounLists(t *testing.T) {
	t.Parallel()
	s := &command.Session{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }}
	var nouns []string
	for _, c := range everything().Root(s, nil, nil).Commands() {
		list, _, err := c.Find([]string{"list"})
		if err != nil || list == c {
			continue
		}
		nouns = append(nouns, c.Name())
		want := ""
		for _, call := range append([]string{c.Name()}, c.Aliases...) {
			for _, list := range []string{"", " list", " ls", " list --watch", " ls -o json"} {
				p, err := parse(strings.Fields(call+list), s.Getenv)
				if want == "" {
					want = p.name
				}
				if err != nil || p.name != want || want == "" {
					t.Errorf("tidemill %s%s calls %q, not %q: %v", call, list, p.name, want, err)
				}
			}
		}
	}
	slices.Sort(nouns)
	if want := strings.Fields("data dead-letters drift models outcomes pools promotions recipes rollouts runs schedules scorers streams token trials triggers"); !slices.Equal(nouns, want) {
		t.Errorf("lists have %q, want %q", nouns, want)
	}
}

// shellWords splits a line as a shell does, as far as the examples need it.
func shellWords(t *testing.T, line string) []string {
	t.Helper()
	var words []string
	var word strings.Builder
	quote, open := rune(0), false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, open = r, true
		case r == ' ':
			if open || word.Len() > 0 {
				words = append(words, word.String())
			}
			word.Reset()
			open = false
		default:
			word.WriteRune(r)
		}
	}
	if quote != 0 {
		t.Fatalf("%s: a quote is open", line)
	}
	return append(words, word.String())
}

func TestSlipsInTheCall(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"tial":                      "did you mean tail?",
		"streem":                    "did you mean streams?",
		"frobnicate":                "tidemill help lists",
		"tokne new":                 `no command "tokne"`,
		"token nwe crm":             "did you mean token new?",
		"help token new crm":        "one argument too many",
		"tail x --form end":         "did you mean --from?",
		"tail x --qqqqqq":           "tidemill help tail",
		"--kafak x:1 tail x":        "did you mean --kafka?",
		"tail":                      "STREAM is missing",
		"tail x --from":             "--from needs a value",
		"tail x -n many":            "-n \"many\": give a number",
		"publish x --i 3":           "no flag --i: did you mean --id?",
		"up --sync=perhaps":         "give true or false",
		"up --listen 8081":          "write it like 127.0.0.1:8080",
		"up --drain-delay 5":        "give a duration such as",
		"up --drain-delay 1h":       "give 0s to 15s",
		"up --max-event 3GiB":       "up to 1GiB",
		"up --listen 1.2.3.4:99999": "a port is 0, which is a free one, to 65535",
		"up --tls-cert x":           "HTTPS needs both",
		"serve":                     "ROLE is missing; the roles: gateway",
		"serve gatewya":             "did you mean gateway? the roles: gateway",
		"serve scorer":              "NAME is missing; name the scorer of the config",
		"serve trainer":             "there is no role \"trainer\": the roles: gateway, dispatcher, controller, scorer",
		"serve gateway":             "Kafka's address is missing",
		"tail x -n -1":              "-n -1",
		"up --kafka-port 7000000":   "a port is 0 to 65535",
		"streams x":                 "one argument too many",
		"schedules show nightly":    "tidemill help schedules lists its commands",
		"models show a/b 3":         "a version is part of the model's name: a/b@3",
		"models promote a/b 3":      "a/b@3",
		"models compare a/b 2 3":    "a/b@3",
		"models pin a/b c":          "put text with spaces in quotes",
		"help x y":                  "one argument too many",
		"tail x --log loud":         "--log",
	} {
		o := call(t, "", append(strings.Fields(args), []string{}...)...)
		if o.code != exitUsage || !strings.Contains(o.err, says) {
			t.Errorf("%s: exit %d, %q; want %q", args, o.code, o.err, says)
		}
	}
}

func TestFlagsStandAnywhere(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"tail --from end events -n 3", "tail events --from=end -n=3", "tail -from end -n 3 -- events", "--name x tail events --from end -n 3",
	} {
		c, err := parse(strings.Fields(args), func(string) string { return "" })
		if err != nil || c.name != "streams tail" {
			t.Errorf("%s: %s %v", args, c.name, err)
			continue
		}
		if p := reflect.ValueOf(c.program).Elem(); len(c.args) != 1 || c.args[0] != "events" || p.FieldByName("limit").Int() != 3 || p.FieldByName("from").String() != "end" {
			t.Errorf("%s: %+v %v", args, c.program, c.args)
		}
	}
}

func TestVariablesStandForFlags(t *testing.T) {
	t.Parallel()
	env := map[string]string{"TIDEMILL_NAME": "prod", "TIDEMILL_KAFKA_TLS": "true", "TIDEMILL_KAFKA_SASL": "PLAIN", "TIDEMILL_LOG": "info"}
	c, err := parse([]string{"streams", "--log", "debug"}, func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	l := reachOf(c.program)
	if l.Name != "prod" || !l.Security.TLS || l.Security.Mechanism != "PLAIN" || l.Log != "debug" {
		t.Errorf("%+v", l.Connection)
	}
	env["TIDEMILL_KAFKA_TLS"] = "perhaps"
	if _, err := parse([]string{"streams"}, func(name string) string { return env[name] }); err == nil || !strings.Contains(err.Error(), "TIDEMILL_KAFKA_TLS") {
		t.Errorf("a bad variable gave %v", err)
	}
}

func TestNobodyAnywhere(t *testing.T) {
	t.Parallel()
	o := call(t, "", "streams", "--data", filepath.Join(t.TempDir(), "none"))
	if o.code != exitFailed {
		t.Errorf("exit %d", o.code)
	}
	mention(t, "the error", o.err, "--url", "TIDEMILL_URL", "--kafka", "TIDEMILL_KAFKA", "tidemill up")
}

func TestValidateGolden(t *testing.T) {
	t.Parallel()
	const golden = "testdata/validate.txt"
	o := call(t, "", "validate", "-f", "testdata/validate.yaml")
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if o.code != exitFailed || o.out != string(want) || o.err != "" {
		t.Errorf("exit %d, stderr %q, stdout\n%s\nwant\n%s", o.code, o.err, o.out, want)
	}
	o = call(t, "", "validate", "testdata/validate.yaml", "-o", "json")
	if o.code != exitFailed {
		t.Errorf("exit %d", o.code)
	}
	mention(t, "validate -o json", o.out, `"file": "testdata/validate.yaml"`, `"line": 3`)
}

func TestValidateGood(t *testing.T) {
	t.Parallel()
	file := leave(t, "version: 1\nstreams: {messages: {}}\n", t.TempDir(), "c.yaml")
	if got, want := ok(t, "validate", "-f", file), file+" is valid: install tidemill, 1 stream of yours, 8 built in, 0 triggers, 0 schedules\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := ok(t, "validate", file, "-o", "json"); got != "[]\n" {
		t.Errorf("got %q", got)
	}
}

// A missing file is only a warning, because another machine may have it.
func TestValidateWarnsOfMissingFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	there := leave(t, "hunter2\n", dir, "token")
	text := "version: 1\nschedules: {nightly: {cron: '@daily'}}\ntriggers:\n" +
		"  a: {when: {type: t}, to: {url: 'https://a.example', bearerFile: '" + there + "', caFile: '" + dir + "'}}\n" +
		"  b: {when: {type: t}, to: {service: b, certFile: '" + dir + "/cert.pem', keyFile: '" + dir + "/hunter2.pem'}}\n"
	file := leave(t, text, dir, "c.yaml")
	o := call(t, "", "validate", file)
	if o.code != 0 || !strings.Contains(o.out, "8 built in, 2 triggers, 1 schedule\n") {
		t.Errorf("exit %d, %s", o.code, o.out)
	}
	mention(t, "the warnings", o.err, file+": triggers.a.to.caFile: the file is a folder; ", "triggers.b.to.certFile: the file does not exist here; ", "triggers.b.to.keyFile: ")
	if strings.Contains(o.err, "bearerFile") || strings.Contains(o.err, "hunter2") {
		t.Errorf("it warns of what is there: %s", o.err)
	}
	if o := call(t, "", "validate", file, "-o", "json"); o.code != 0 || o.out != "[]\n" || o.err == "" {
		t.Errorf("as JSON: exit %d, %q, %q", o.code, o.out, o.err)
	}

	text = "version: 1\nrecipes:\n  a: {when: {type: t}, run: {dir: nowhere, command: [sh]}}\n  b: {when: {type: t}, run: {dir: ., command: [sh]}}\n"
	o = call(t, "", "validate", leave(t, text, dir, "recipes.yaml"))
	if want := "recipes.a.run.dir: there is no folder " + filepath.Join(dir, "nowhere") + " here; the runs need it\n"; o.code != 0 || !strings.HasSuffix(o.err, want) || strings.Count(o.err, "\n") != 1 {
		t.Errorf("exit %d, %s", o.code, o.err)
	}

	var many strings.Builder
	many.WriteString("version: 1\ntriggers:\n")
	for i := range 30 {
		fmt.Fprintf(&many, "  t%d: {when: {type: t}, to: {service: b, basicFile: '%s/none'}}\n", i, dir)
	}
	o = call(t, "", "validate", leave(t, many.String(), dir, "many.yaml"))
	if lines := strings.Split(strings.TrimSpace(o.err), "\n"); len(lines) != maxMissing+1 || !strings.HasSuffix(lines[maxMissing], ": and 10 more") {
		t.Errorf("%d lines: %s", len(lines), o.err)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	mention(t, "version", ok(t, "version"), "tidemill ", "go1.")
	mention(t, "version -o json", ok(t, "version", "-o", "json"), `"version":`, `"go":"go1.`)
}

// The command that the demo suggests next works for the caller.
func TestCalledAs(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"tidemill": "tidemill", "bin/tidemill": "bin/tidemill", "/usr/local/bin/tidemill": "/usr/local/bin/tidemill",
		"/tmp/go-build1234/b001/exe/tidemill": "make build && bin/tidemill",
	} {
		if got := calledAs(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// help accepts a command with its argument, as in help serve gateway.
func TestHelpWithAnArgument(t *testing.T) {
	if got := ok(t, "help", "serve", "gateway"); got != ok(t, "help", "serve") {
		t.Errorf("got %s", got)
	}
	if refused := call(t, "", "help", "tail", "x", "y"); refused.code != exitUsage {
		t.Errorf("%+v", refused)
	}
}
