package cli

import (
	"strings"
	"testing"
)

func TestLogsRefuses(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{"logs": "RUN is missing", "logs a b": "one argument too many", "logs abcdef --attempt -1": "--attempt -1", "logs abcdef --tial": "no flag --tial"} {
		if o := call(t, "", strings.Fields(args)...); o.code != exitUsage || !strings.Contains(o.err, says) {
			t.Errorf("%s: exit %d, %q", args, o.code, o.err)
		}
	}
}

func TestSlipsInCallsOfModels(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"models intent/bot-42":        "tidemill models show intent/bot-42 shows one model",
		"models --stale 7d":           "write --stale=7d",
		"models --stale=x":            "--stale=x is not an age",
		"models --limit 0":            "--limit 0",
		"models show":                 "MODEL is missing",
		"models show a@07":            "names no version",
		"models show a@":              "write a number, champion, previous or newest after the @",
		"models show /":               "names no model",
		"compare a":                   "B is missing",
		"compare a @0":                "names no version",
		"promote intent/bot-42":       "say which version: intent/bot-42@newest",
		"unpin a@3":                   "tidemill unpin a",
		"rollback a --force":          "no flag --force",
		"models rollback --recipe r":  "--since -2h",
		"models rollback --since -2h": "say which",
		"models rollback --since -2h --all --recipe r": "say which",
		"models rollback --since x --all":              "--since",
		"models rollback intent/bot-42 --since -2h":    "and not both",
		"models rollback --since -2h --where x=":       "--where",
		"promotions freeze intent":                     "give a recipe by --recipe intent",
		"promotions melt":                              "one argument too many",
	} {
		if o := call(t, "", strings.Fields(args)...); o.code != exitUsage || !strings.Contains(o.err, says) {
			t.Errorf("%s: exit %d, %q; want %q", args, o.code, o.err, says)
		}
	}
}

func TestSlipsInCallsOfRuns(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"runs x":                              "tidemill runs show x shows one run",
		"runs --state runing":                 "did you mean running?",
		"runs --limit 0":                      "--limit 0",
		"runs --since x":                      "--since",
		"runs --watch -o json":                "--watch prints text",
		"runs show":                           "RUN is missing",
		"runs start":                          "RECIPE is missing",
		"runs start intent --key a --all":     "leave out --key or --all",
		"runs start intent --key a,":          "a key is empty",
		"runs start intent --where x":         "give --all too",
		"runs start intent --all --where x=":  "--where, ",
		"runs start intent --all --rate fast": "--rate",
		"runs cancel":                         "say which",
		"runs cancel abcdef --all":            "--all selects all",
		"runs cancel abcdef --recipe intent":  "give either runs",
		"runs retry --all --rate x":           "--rate",
		"recipes pause":                       "NAME is missing",
		"recipes stop intent":                 "one argument too many",
		"pools -o xml":                        "xml",
		"pools resume a b":                    "one argument too many",
	} {
		if o := call(t, "", strings.Fields(args)...); o.code != exitUsage || !strings.Contains(o.err, says) {
			t.Errorf("%s: exit %d, %q; want %q", args, o.code, o.err, says)
		}
	}
}
