//! The engine of stentor: topics, groups, delivery, retention
