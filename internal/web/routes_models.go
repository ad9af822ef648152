package web

import (
	"net/http"

	"tidemill.dev/internal/access"
)

// modelTable is what the gateway answers about models and their promotions. A
// model's name has slashes, so that it is a parameter and no part of a path.
func (g *Gateway) modelTable() []route {
	return []route{
		{method: http.MethodGet, path: "/api/v1/models", role: access.Read, handle: g.listModels},
		{method: http.MethodPost, path: "/api/v1/models/rollback", role: access.Approve, handle: g.rollbackModels},
		{method: http.MethodGet, path: "/api/v1/model", role: access.Read, handle: g.showModel},
		{method: http.MethodPost, path: "/api/v1/model/promote", role: access.Approve, handle: g.promoteModel},
		{method: http.MethodPost, path: "/api/v1/model/rollback", role: access.Approve, handle: g.rollbackModel},
		{method: http.MethodPost, path: "/api/v1/model/pin", role: access.Approve, handle: g.pinModel},
		{method: http.MethodPost, path: "/api/v1/model/unpin", role: access.Approve, handle: g.unpinModel},
		{method: http.MethodGet, path: "/api/v1/promotions", role: access.Read, handle: g.listFreezes},
		{method: http.MethodPost, path: "/api/v1/promotions/freeze", role: access.Approve, handle: g.freezePromotions},
		{method: http.MethodPost, path: "/api/v1/promotions/thaw", role: access.Approve, handle: g.thawPromotions},
	}
}
