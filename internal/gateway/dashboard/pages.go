package dashboard

import (
	"net/http"
	"slices"

	h "maragu.dev/gomponents/html"
)

// navGroup is a group of pages in the navigation.
type navGroup struct {
	Title   string
	Entries []navEntry
}

// navEntry is a page in the navigation. Keys are the two keys that open it.
type navEntry struct{ Title, Path, Keys string }

// navigation lists the pages, in groups.
func navigation() []navGroup {
	return []navGroup{
		{"Models", []navEntry{{"Fleet", "/", "g f"}, {"Models", "/ui/models", "g m"}, {"Trials", "/ui/trials", "g i"}, {"Rollouts", "/ui/rollouts", "g o"}, {"Scorers", "/ui/scorers", "g s"}, {"Approvals and commands", "/ui/approvals", "g a"}}},
		{"Training", []navEntry{{"Runs and pools", "/ui/runs", "g r"}, {"Data", "/ui/data", "g d"}, {"Lineage", "/ui/lineage", "g l"}}},
		{"Events", []navEntry{{"Streams", "/ui/streams", "g e"}, {"Triggers and schedules", "/ui/triggers", "g t"}, {"Dead letters", "/ui/dead-letters", "g x"}}},
		{"Install", []navEntry{{"Health", "/ui/health", "g h"}}},
	}
}

// pageTable lists all pages.
func pageTable() []*page {
	return slices.Concat(fleetPages(), runPages(), triggerPages(), letterPages(), streamPages(), searchPages(), actPages(), signInPages(), modelPages(), keyPages(), trialPages(), rolloutPages(), approvalPages(), scorerPages(), dataPages(), lineagePages(), healthPages())
}

// missingPage is the page of an address without a page.
func missingPage() *page {
	return &page{path: "/", title: named("There is no such page"), status: http.StatusNotFound, main: still(func(v *view) Node {
		return list(h.H1(say(v.Title)), h.P(say("No page has this address. The navigation lists all pages, and the search box finds keys, runs, models and names.")))
	})}
}
