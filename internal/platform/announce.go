package platform

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
)

// announce publishes the event that a commit is.
func (p *Platform) announce(ctx context.Context, c api.Commit) error {
	v, err := newData(p.names, &c)
	if err != nil {
		return fmt.Errorf("announce commit %s of dataset %s: %w", c.ID, c.Dataset, err)
	}
	if _, err := p.announcer.Publish(ctx, p.Config().StreamFor(v.Type), &v); err != nil {
		return fmt.Errorf("announce commit %s of dataset %s: %w", c.ID, c.Dataset, err)
	}
	return nil
}

// changes are the data of new-data.
type changes struct {
	Parent  string `json:"parent,omitempty"`
	Number  int64  `json:"number"`
	Added   int    `json:"added"`
	Changed int    `json:"changed"`
	Removed int    `json:"removed"`
	Files   int    `json:"files"`
	Bytes   int64  `json:"bytes"`
	Message string `json:"message,omitempty"`
}

// newData is the event of a commit. Its id follows from the commit, so whoever
// announces it again announces the same.
func newData(names tidemill.Names, c *api.Commit) (broker.View, error) {
	data, err := json.Marshal(changes{c.Parent, c.Number, c.Added, c.Changed, c.Removed, c.Files, c.Bytes, c.Message})
	if err != nil {
		return broker.View{}, err
	}
	id := tidemill.ID(tidemill.TypeNewData, c.Dataset, c.Branch, c.ID)
	v := broker.View{ID: id, Source: names.Source("data"), Type: tidemill.TypeNewData, Subject: c.Subject,
		Time: c.Time.UTC().Format(time.RFC3339Nano), DataSchema: tidemill.Schema(tidemill.TypeNewData),
		DataContentType: "application/json", Data: data}
	for _, a := range []broker.Attribute{
		{Name: tidemill.AttrDataset, Value: c.Dataset}, {Name: tidemill.AttrBranch, Value: c.Branch}, {Name: tidemill.AttrCommit, Value: c.ID},
		{Name: tidemill.AttrCorrelationID, Value: id}, {Name: tidemill.AttrRun, Value: c.Run}, {Name: tidemill.AttrAuthID, Value: c.By},
	} {
		if a.Value != "" {
			v.Extensions = append(v.Extensions, a)
		}
	}
	return v, nil
}
