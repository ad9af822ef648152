package cli

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev/api"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/cli/connect"
)

func TestSchedules(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	file := leave(t, "version: 1\n", dir, "tidemill.yaml")
	startUp(t, data, "-f", file)
	if o := call(t, "", "schedules", "--data", data); o.code != 0 || !strings.Contains(o.err, "The config has no schedules") {
		t.Errorf("without any: %+v", o)
	}
	leave(t, `version: 1
schedules:
  nightly: {cron: "0 3 29 2 *", timeZone: Europe/Berlin} # it shall not tick meanwhile
  often: {cron: "@every 1s"}
`, file)
	eventually(t, func() bool { return strings.Contains(ok(t, "schedules", "--data", data), "often") })
	eventually(t, func() bool {
		return strings.Contains(ok(t, "tail", "events", "--data", data, "--from", "beginning", "--no-follow"), "schedule=often")
	})
	out := ok(t, "schedules", "--data", data)
	mention(t, "schedules", out, "NAME ", "LAST", "nightly  0 3 29 2 *  -     never", " 03:00:00 CE", "@every 1s", " UTC", "active")

	mention(t, "pause", ok(t, "schedules", "pause", "nightly", "--data", data), "paused nightly")
	mention(t, "pause again", ok(t, "schedules", "pause", "nightly", "--data", data), "nightly was paused already")
	mention(t, "schedules", ok(t, "schedules", "--data", data), "paused since ")
	var all []api.Schedule
	eventually(t, func() bool { // a busy Kafka may be late with the position of the clock
		if err := json.Unmarshal([]byte(ok(t, "schedules", "-o", "json", "--data", data)), &all); err != nil {
			t.Fatal(err)
		}
		return len(all) == 2 && all[1].Last != nil
	})
	if all[0].State != api.SchedulePaused || all[0].Next != nil {
		t.Errorf("%+v", all)
	}
	mention(t, "resume", ok(t, "schedules", "--data", data, "resume", "nightly"), "resumed nightly")
	mention(t, "resume again", ok(t, "schedules", "resume", "nightly", "--data", data), "nightly was not paused")
	for args, says := range map[string]string{
		"schedules pause no":                  `schedule "no" is not in the config`,
		"schedules pause":                     "NAME is missing",
		"schedules stop nightly":              `"stop" is one argument too many`,
		"schedules --kafka localhost:1":       "there is no flag --kafka",
		"schedules -o yaml":                   "yaml",
		"schedules pause nightly --no-follow": "no-follow",
	} {
		if o := call(t, "", append(strings.Fields(args), "--data", data)...); o.code == 0 || !strings.Contains(o.err, says) {
			t.Errorf("%s: %+v, want %q", args, o, says)
		}
	}
}

// A controller that runs alone makes ticks as up does.
func TestServeController(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := leave(t, "version: 1\nschedules: {often: {cron: '@every 1s'}}\n", dir, "c.yaml")
	kafka := servers(t, embedded.Options{Dir: dir})
	g := startGateway(t, append(kafka, "-f", file, "--listen", "127.0.0.1:0")...)
	ctx, stop := context.WithCancel(context.Background())
	var out, log syncBuffer
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, append([]string{"serve", "controller", "-f", file, "--listen", "127.0.0.1:0"}, kafka...), strings.NewReader(""), &out, &log)
	}()
	eventually(t, func() bool {
		return strings.Contains(ok(t, "tail", "events", "--url", g.url, "--from", "beginning", "--no-follow"), "schedule=often")
	})
	eventually(t, func() bool { return httpAt.MatchString(out.String()) }) // the first tick may come before the addresses
	mention(t, "what it says", out.String(), "tidemill's controller is up after ", "kafka   "+kafka[1])
	at := httpAt.FindStringSubmatch(out.String())[1]
	for path, want := range map[string]string{"/healthz": "ok", "/readyz": `"clock"`, "/metrics": `tidemill_clock_ticks_total{schedule="often"}`} {
		eventually(t, func() bool { return strings.Contains(fetch(t, at+path), want) }) // the counter may be later than the tick
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("%v\n%s", err, &log)
	}
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	s := &server{}
	s.HTTP = strings.TrimPrefix(url[:strings.LastIndex(url, "/")], "http://")
	_, body := s.get(t, url[strings.LastIndex(url, "/"):])
	return body
}

// manifest has the fields of the Kubernetes objects in docs/schedules.md.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Spec       struct {
		Schedule    string
		OfPing      string `yaml:"timezone"`
		OfJob       string `yaml:"timeZone"`
		Sink        struct{ URI string }
		CEOverrides struct{ Extensions map[string]string } `yaml:"ceOverrides"`
		JobTemplate struct {
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Command, Args []string
							Env           []struct{ Name, Value string }
						}
					}
				}
			}
		} `yaml:"jobTemplate"`
	}
}

// block is a code block of a document.
type block struct{ language, file, text string }

var fence = regexp.MustCompile("(?ms)^```([a-z]+)(?: file=(\\S+))?\n(.*?)^```$")

func blocksOf(text string) []block {
	var all []block
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		all = append(all, block{m[1], m[2], m[3]})
	}
	return all
}

// manifests returns the Kubernetes objects of docs/schedules.md.
func manifests(t *testing.T) map[string]manifest {
	t.Helper()
	text, err := os.ReadFile("../../docs/schedules.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]manifest{}
	for _, b := range blocksOf(string(text)) {
		if b.language != "yaml" || b.file == "" {
			continue
		}
		var m manifest
		if err := yaml.Unmarshal([]byte(b.text), &m); err != nil {
			t.Fatalf("%s: %v", b.file, err)
		}
		all[m.APIVersion+" "+m.Kind] = m
	}
	return all
}

// The external clocks of docs/schedules.md are valid for Kubernetes and Knative. The CronJob's
// command publishes one tick a day, even if it is repeated.
func TestOtherClocks(t *testing.T) {
	t.Parallel()
	all := manifests(t)
	ping := all["sources.knative.dev/v1 PingSource"]
	if ping.Spec.Schedule != "0 3 * * *" || ping.Spec.OfPing != "Europe/Berlin" || !strings.HasSuffix(ping.Spec.Sink.URI, "/events") || ping.Spec.CEOverrides.Extensions["schedule"] != "nightly" {
		t.Errorf("%+v", ping)
	}
	job := all["batch/v1 CronJob"]
	containers := job.Spec.JobTemplate.Spec.Template.Spec.Containers
	if job.Spec.Schedule != "0 3 * * *" || job.Spec.OfJob != "Europe/Berlin" || len(containers) != 1 || containers[0].Env[0].Name != connect.EnvURL {
		t.Fatalf("%+v", job)
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("there is no curl")
	}
	g := startGateway(t, append(servers(t, embedded.Options{}), "-f", leave(t, "version: 1\n", t.TempDir(), "c.yaml"), "--listen", "127.0.0.1:0")...)
	today, day := func() string { return time.Now().UTC().Format(time.DateOnly) }, ""
	for day != today() { // again if midnight was in between
		day = today()
		for range 2 {
			command := exec.CommandContext(t.Context(), containers[0].Command[0], append(containers[0].Command[1:], containers[0].Args...)...)
			command.Env = append(os.Environ(), connect.EnvURL+"="+g.url, connect.EnvToken+"=", "no_proxy=*")
			if out, err := command.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", containers[0].Args, err, out)
			}
		}
	}
	out := ok(t, "tail", "events", "--url", g.url, "--from", "beginning", "--no-follow")
	mention(t, "tail", out, "nightly-"+day, "report-due", "schedule=nightly")
	if n := strings.Count(out, "nightly-"+day); n != 1 {
		t.Errorf("%d ticks of %s:\n%s", n, day, out)
	}
}
