package main

import (
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

const (
	// runbooks is where the pages about alerts are. The chart replaces it by
	// metrics.prometheusRule.runbooks, and the board has a field for it.
	runbooks = "docs/runbooks"

	// selector is replaced in queries by the label of the chosen namespace. The choice All also
	// matches metrics without a namespace, those of a Tidemill outside Kubernetes.
	selector  = "$s"
	namespace = `namespace=~"$namespace"`

	columns     = 24 // width of Grafana's grid
	panelHeight = 8
)

// row is the panels of one theme.
type row struct {
	title  string
	panels []panel
}

// panel is a chart with the reason to look at it.
type panel struct {
	title, description string
	unit               string
	runbook            string // file below runbooks; empty: none
	queries            []query
}

type query struct{ expr, legend string }

// board returns the dashboard in Grafana's classic form, which also versions before 12 read.
//
//lint:ignore SA1019 the new form needs Grafana 12
func board() (dashboard.Dashboard, error) {
	//lint:ignore SA1019 the new form needs Grafana 12
	b := dashboard.NewDashboardBuilder("Tidemill").
		Uid("tidemill").
		Description("How events, triggers, scorers, runs and models of Tidemill are doing.").
		Tags([]string{"tidemill"}).
		Time("now-3h", "now").
		Refresh("30s").
		Tooltip(dashboard.DashboardCursorSyncCrosshair).
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Prometheus").Type("prometheus")).
		WithVariable(namespaces()).
		WithVariable(dashboard.NewTextBoxVariableBuilder("runbooks").Label("Address of the runbooks").
			DefaultValue(text(runbooks)).Current(option(runbooks, runbooks)))
	id := uint32(0)
	for _, r := range rows() {
		id++
		b.WithRow(dashboard.NewRowBuilder(r.title).Id(id))
		for i, p := range r.panels {
			id++
			b.WithPanel(p.build(id, width(i, len(r.panels))))
		}
	}
	return b.Build()
}

// width returns the width of a panel of a row. A line has three panels, or the four of a row of four.
// The panels of the last line fill it.
func width(panel, all int) uint32 {
	switch last := all % 3; {
	case all == 4:
		return columns / 4
	case panel >= all-last:
		return columns / uint32(last)
	}
	return columns / 3
}

func namespaces() *dashboard.QueryVariableBuilder {
	return dashboard.NewQueryVariableBuilder("namespace").Label("Namespace").
		Datasource(source()).
		Query(text("label_values(tidemill_build_info, namespace)")).
		Refresh(dashboard.VariableRefreshOnTimeRangeChanged).
		IncludeAll(true).AllValue(".*").
		Current(option("All", "$__all"))
}

func (p panel) build(id, width uint32) *timeseries.PanelBuilder {
	b := timeseries.NewPanelBuilder().
		Id(id).
		Title(p.title).
		Description(p.description).
		Datasource(source()).
		Unit(p.unit).
		Min(0).
		FillOpacity(8).
		ShowPoints(common.VisibilityModeNever).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom)).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)).
		Height(panelHeight).
		Span(width)
	if p.runbook != "" {
		b.Links([]cog.Builder[dashboard.DashboardLink]{dashboard.NewDashboardLinkBuilder("What to do").
			Type(dashboard.DashboardLinkTypeLink).Url("${runbooks:raw}/" + p.runbook).TargetBlank(true)})
	}
	for i, q := range p.queries {
		b.WithTarget(prometheus.NewDataqueryBuilder().RefId(string(rune('A' + i))).
			Expr(strings.ReplaceAll(q.expr, selector, namespace)).LegendFormat(q.legend).Range())
	}
	return b
}

// source is the Prometheus that the reader has chosen.
func source() common.DataSourceRef {
	return common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("${datasource}")}
}

func text(s string) dashboard.StringOrMap { return dashboard.StringOrMap{String: &s} }

func option(text, value string) dashboard.VariableOption {
	return dashboard.VariableOption{Text: dashboard.StringOrArrayOfString{String: &text}, Value: dashboard.StringOrArrayOfString{String: &value}}
}
