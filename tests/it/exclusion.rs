//! P1: one holder at a time, over processes and within one.

use crate::support::{Server, Timing, Worker, count, limit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_sixteen_clients_in_four_processes_count_exactly() {
    limit(async {
        let server = Server::start().await;
        let file = counter();
        let path = file.path().to_str().unwrap();
        let mut workers = Vec::new();
        for _ in 0..4 {
            // Four clients each: every `count` of a process runs in a worker of its own.
            for _ in 0..4 {
                workers.push(Worker::start(&server.url()).await);
            }
        }
        for worker in &mut workers {
            worker.tell(&format!("count p1 {path} 100")).await;
        }
        for worker in &mut workers {
            worker.expect("counted").await;
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), "1600");
        drop(workers);
        server.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn p1_branches_of_one_task_exclude_each_other() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let file = counter();
        let path = file.path().to_str().unwrap();
        futures::future::join_all((0..16).map(|_| count(&client, "p1", path, 100))).await;
        assert_eq!(std::fs::read_to_string(path).unwrap(), "1600");
        client.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

fn counter() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "0").unwrap();
    file
}
