package gateway

import (
	"reflect"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger/fold"
)

// The types about models have the same fields in openapi.json.
func TestDocumentHasEveryFieldOfModels(t *testing.T) {
	t.Parallel()
	checkFields(t, map[string]any{"Models": api.Models{}, "ModelShown": api.ModelShown{}, "ModelWhole": api.ModelWhole{}, "ModelVersion": api.ModelVersion{}, "LiveFigures": api.LiveFigures{}, "LiveBin": api.LiveBin{}, "Day": tidemill.Day{},
		"HeldVersion": fold.Held{}, "Mark": tidemill.Mark{}, "Pin": fold.Pin{}, "ChampionChange": fold.Change{}, "Owed": fold.Owed{}, "PromotionRequest": fold.Asked{},
		"TrialEnd": fold.TrialEnd{}, "TrialTerms": tidemill.TrialTerms{}, "TrialVerdict": tidemill.TrialVerdict{}, "TrialRange": tidemill.TrialRange{}, "TrialBudget": tidemill.TrialBudget{},
		"Trial": api.Trial{}, "TrialStep": tidemill.TrialStep{}, "TrialList": api.TrialList{}, "EndedTrials": api.EndedTrials{}, "EndedTrial": api.EndedTrial{}, "Rejudged": api.Rejudged{}, "ServingCheck": tidemill.ServingCheck{}, "Judge": tidemill.Judge{}, "Judgement": tidemill.Judgement{}, "Clause": tidemill.Clause{}, "Report": tidemill.Report{}, "Beside": tidemill.Beside{},
		"Estimate": tidemill.Estimate{}, "Figures": tidemill.Figures{}, "Class": tidemill.Class{}, "Cell": tidemill.Cell{}, "Champion": tidemill.Champion{},
		"PromotionAsked": api.PromotionAsked{}, "PromotionDone": api.PromotionDone{}, "RollbackAsked": api.RollbackAsked{}, "PromotionsDone": api.PromotionsDone{},
		"Commands": api.Commands{}, "Command": api.Command{}, "Promotions": api.Promotions{}, "Freeze": api.Freeze{}, "FreezeAsked": api.FreezeAsked{},
		"Fleet": api.Fleet{}, "FleetRecipe": api.FleetRecipe{}, "FleetAge": api.FleetAge{}, "FleetKeys": api.FleetKeys{}, "FleetKey": api.FleetKey{}, "FleetStrip": api.FleetStrip{}},
		func(string, map[string]bool) {})
}

// The states and actions in the document are those of the code.
func TestDocumentHasEveryStateOfVersions(t *testing.T) {
	t.Parallel()
	schemas := loadDocument(t).Components.Schemas
	want := []any{string(tidemill.VersionRegistered), string(tidemill.VersionAwaiting), string(tidemill.VersionTrial), string(tidemill.VersionCanary), string(tidemill.VersionRefused), string(tidemill.VersionPromoted)}
	if got := schemas["HeldVersion"].Value.Properties["state"].Value.Enum; !reflect.DeepEqual(got, want) {
		t.Errorf("states are %v, want %v", got, want)
	}
	want = nil
	for _, s := range api.KeyStates() {
		want = append(want, string(s))
	}
	if got := schemas["FleetKey"].Value.Properties["state"].Value.Enum; !reflect.DeepEqual(got, want) {
		t.Errorf("states of keys are %v, want %v", got, want)
	}
	want = []any{string(tidemill.ActionJudge), string(tidemill.ActionConclude), string(tidemill.ActionPromote), string(tidemill.ActionRollback), string(tidemill.ActionPin), string(tidemill.ActionUnpin)}
	if got := schemas["ChampionChange"].Value.Properties["action"].Value.Enum; !reflect.DeepEqual(got, want) {
		t.Errorf("actions are %v, want %v", got, want)
	}
}
