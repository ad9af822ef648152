package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	dataTrigger = `  fresh:
    when: {type: new-data}
    to: {url: "http://%s/fresh"}
    delivery: {replies: ignore}
`
	dataRecipe = `  learn:
    when: {type: new-data}
    inputs: {examples: "bots/{key}"}
    run: {dir: /, command: [train], attempts: 5}
`
)

// commit is a commit of one file, which somebody asked for until a gateway acknowledged it.
type commit struct {
	dataset, request, path, content string
	id                              string // empty until it is acknowledged
}

// commitData commits one file after another to a few datasets, to which others commit too.
func (b *publishers) commitData(i int) {
	r := random(b.w.p.seed, fmt.Sprint("committer", i))
	clients, done := b.clients()
	defer done()
	until := time.Now().Add(b.w.p.load)
	for n := 0; time.Now().Before(until); n++ {
		c := &commit{dataset: fmt.Sprintf("bots/b%d", r.IntN(2)), request: fmt.Sprintf("commit-%d-%d", i, n)}
		c.path, c.content = c.request+".txt", "content of "+c.request
		b.mu.Lock()
		b.commits = append(b.commits, c)
		b.mu.Unlock()
		for try := range 300 {
			id, err := b.commitOnce(clients[(n+try)%len(clients)], c)
			b.w.history.say("committer: %s to %s: %s %v", c.request, c.dataset, id, err)
			if err == nil {
				b.mu.Lock()
				c.id = id
				b.mu.Unlock()
				break
			}
			sleep(b.w.ctx, 500*time.Millisecond)
		}
		time.Sleep(time.Duration(r.Int64N(int64(4 * time.Second))))
	}
}

// commitOnce puts the file and commits it, as tidemill data put does.
func (b *publishers) commitOnce(client *http.Client, c *commit) (id string, err error) {
	sum := sha256.Sum256([]byte(c.content))
	digest := hex.EncodeToString(sum[:])
	if _, err := b.ask(client, fmt.Sprintf("/api/v1/data/object?digest=%s&size=%d", digest, len(c.content)), []byte(c.content)); err != nil {
		return "", err
	}
	var body bytes.Buffer
	to := json.NewEncoder(&body)
	err = errors.Join(to.Encode(map[string]any{"dataset": c.dataset, "request": c.request, "message": c.request}),
		to.Encode(map[string]any{"path": c.path, "digest": digest, "size": len(c.content)}))
	if err != nil {
		return "", err
	}
	text, err := b.ask(client, "/api/v1/data/commits", body.Bytes())
	if err != nil {
		return "", err
	}
	var done struct{ ID string }
	return done.ID, json.Unmarshal(text, &done)
}

func (b *publishers) ask(client *http.Client, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(b.w.ctx, http.MethodPost, gatewayURL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s", res.Status, text)
	}
	return text, err
}

// committed checks that each acknowledged commit has one event, that no request has two, that the
// commits of a branch are numbered without a gap, and that a run gets the commits that caused it.
func (o *oracle) committed() (all []string) {
	of, numbers, events := map[string]map[string]bool{}, map[string]map[int64]string{}, map[string]string{} // commits of each request, of each number and of each event
	for i := range o.records["events"] {
		r := &o.records["events"][i]
		if r.typ() != "new-data" {
			continue
		}
		var d struct {
			Number  int64
			Message string
		}
		id, dataset := r.head["ce_commit"], r.head["ce_dataset"]
		if err := json.Unmarshal([]byte(r.value), &d); err != nil {
			all = append(all, fmt.Sprintf("read the event of commit %s: %v", id, err))
		}
		if of[d.Message] == nil {
			of[d.Message] = map[string]bool{}
		}
		of[d.Message][id] = true
		if numbers[dataset] == nil {
			numbers[dataset] = map[int64]string{}
		}
		if before := numbers[dataset][d.Number]; before != "" && before != id {
			all = append(all, fmt.Sprintf("commit %d of %s is %s and %s", d.Number, dataset, before, id))
		}
		numbers[dataset][d.Number], events[r.id()] = id, id
	}
	for i := range o.records["dead-letters"] {
		if r := &o.records["dead-letters"][i]; strings.Contains(r.value, "in the store") || strings.Contains(r.value, "S3 ") {
			all = append(all, fmt.Sprintf("a dead letter blames the store: %s", r.value))
		}
	}
	for _, c := range o.w.posts.commits {
		if ids := of[c.request]; len(ids) > 1 || c.id != "" && !ids[c.id] {
			all = append(all, fmt.Sprintf("request %s to %s was acknowledged as commit %q, and has events of the commits %v", c.request, c.dataset, c.id, ids))
		}
	}
	place := map[string]int64{} // number of each commit
	for _, named := range numbers {
		for n, id := range named {
			place[id] = n
		}
	}
	for name, r := range o.w.agents.runs {
		for cause := range r.causes {
			if n := place[events[cause]]; n > place[r.input] {
				all = append(all, fmt.Sprintf("run %s of %s has the event of commit %d as a cause, and its data are those of commit %d, %s", name, r.key, n, place[r.input], r.input))
			}
		}
	}
	for dataset, named := range numbers {
		for n := range int64(len(named)) {
			if named[n+1] == "" {
				all = append(all, fmt.Sprintf("commit %d of %s has no event, and there are %d", n+1, dataset, len(named)))
			}
		}
	}
	return all
}

// kept checks that the file of each acknowledged commit is on its branch, and can be read through the
// gateway and by the signed address.
func (o *oracle) kept() (all []string) {
	for _, c := range o.w.posts.commits {
		if c.id == "" {
			continue
		}
		sum := sha256.Sum256([]byte(c.content))
		for _, path := range []string{"/api/v1/data/file?path=" + c.path + "&at=" + c.id, "/api/v1/data/file?path=" + c.path, "/api/v1/data/object?digest=" + hex.EncodeToString(sum[:])} {
			if strings.Contains(path, "/file?") {
				path += "&dataset=" + url.QueryEscape(c.dataset)
			}
			status, text, err := o.get(o.w.doors()[0], path)
			if err != nil || status != http.StatusOK || text != c.content {
				all = append(all, fmt.Sprintf("%s of commit %s: %d %v %.300s", path, c.id, status, err, text))
			}
		}
	}
	return all
}
