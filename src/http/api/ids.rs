//! `POST /v1/ids`: ids for clients whose clock can't be trusted, or that can't make UUIDs of version 7.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::Serialize;
use utoipa::ToSchema;

use crate::engine::write::{Refused, UpdateError};
use crate::http::body::extract;
use crate::http::body::parameters::{self, Parameter, Query, params};
use crate::http::problem::Problem;
use crate::http::state::{Served, Shared};
use crate::limits;
use crate::policy::Caller;
use crate::runtime::random::update_id;

params! {
    /// Query parameters of new ids.
    struct IdParams {
        count: usize = COUNT,
    }
}

const COUNT: Parameter<usize> = Parameter {
    example: Some("3"),
    ..parameters::whole("count", "How many ids", limits::BATCH_ITEMS_MAX, 1)
};

/// New ids.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct IdsView {
    /// UUIDs of version 7.
    #[schema(example = json!(["019ac3ee-6e80-7abc-8def-0123456789ab"]))]
    ids: Vec<String>,
}

/// Make ids
///
/// Each is a UUID of version 7 with the time of this pod's clock, later than the one before it. Use one as `Idempotency-Key`, or as `id` of
/// an item: the update then counts once, however often it is sent. A client with a right clock can make them by
/// itself.
#[utoipa::path(
    post, path = "/v1/ids", tag = "keys",
    params(IdParams),
    responses((status = 200, description = "New ids", body = IdsView))
)]
pub(crate) async fn ids(
    State(served): State<Served>,
    caller: Caller,
    Query(params): Query<IdParams>,
    headers: HeaderMap,
) -> Result<Json<IdsView>, Problem> {
    extract::of_read(&headers)?;
    let Shared { app, .. } = &*served;
    caller.pass_or_refuse(params.count - 1)?;
    // Ids with a wrong time would be refused later, or end too early.
    let clock = app.service.check_clock().map_err(|error| UpdateError::from(Refused::from(error)));
    clock?;
    let now = app.service.now().wall;
    let times = (0..).map(|later| now.plus(Duration::from_micros(later)));
    let ids = times.take(params.count).map(|time| update_id(time).to_string());
    Ok(Json(IdsView { ids: ids.collect() }))
}
