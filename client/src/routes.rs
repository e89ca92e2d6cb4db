//! Where the partitions of topics are, as brokers tell it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stentor_protocol::wire::Route;
use tokio::sync::watch;

/// The routes of the topics that somebody follows. Bounded by that: a route that nobody follows any more is forgotten.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    followed: Mutex<BTreeMap<String, watch::Sender<Arc<Route>>>>,
}

impl Routes {
    /// Follows a topic, whose route is `route` for now, whatever was known before: a broker that has just been asked is
    /// right.
    pub(crate) fn follow(&self, route: Route) -> watch::Receiver<Arc<Route>> {
        let mut followed = self.lock();
        followed.retain(|_, sender| sender.receiver_count() > 0);
        let topic = route.topic.clone();
        let route = Arc::new(route);
        match followed.get(&topic) {
            Some(sender) => {
                sender.send_replace(route);
                sender.subscribe()
            }
            None => followed.entry(topic).or_insert_with(|| watch::Sender::new(route)).subscribe(),
        }
    }

    /// Takes in a route that a broker pushed. An older one than is known changes nothing.
    pub(crate) fn update(&self, route: Route) {
        let followed = self.lock();
        if let Some(sender) = followed.get(&route.topic) {
            sender.send_if_modified(|known| {
                let newer = route.version > known.version;
                if newer {
                    *known = Arc::new(route);
                }
                newer
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, watch::Sender<Arc<Route>>>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(topic: &str, version: u64) -> Route {
        Route { topic: topic.to_owned(), version, ..Route::default() }
    }

    #[test]
    fn a_pushed_route_counts_only_if_it_is_newer() {
        let routes = Routes::default();
        let known = routes.follow(route("t", 3));
        routes.update(route("t", 2));
        routes.update(route("other", 9));
        assert_eq!(known.borrow().version, 3);
        routes.update(route("t", 4));
        assert_eq!(known.borrow().version, 4);
        // A broker that was asked just now is right, even if it counts anew.
        let again = routes.follow(route("t", 1));
        assert_eq!((known.borrow().version, again.borrow().version), (1, 1));
    }

    #[test]
    fn a_route_that_nobody_follows_is_forgotten() {
        let routes = Routes::default();
        drop(routes.follow(route("t", 1)));
        let _other = routes.follow(route("u", 1));
        assert_eq!(routes.lock().keys().collect::<Vec<_>>(), ["u"]);
    }
}
